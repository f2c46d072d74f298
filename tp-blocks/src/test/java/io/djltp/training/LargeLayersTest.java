package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** Layers so large that their products may be another kernel's are those of DJL to 1e-5. */
public class LargeLayersTest {

    private static final int STEPS = 3;

    @DataProvider
    public static Object[][] kinds() {
        return TrainerKind.rows(TENSOR_1, TENSOR_2, DATA_2, MESH_2X2, PLAIN);
    }

    @Test(dataProvider = "kinds", timeOut = 120_000)
    public void threeStepsAreThoseOfPlainDjl(TrainerKind kind) {
        Block parallel =
                sequence(
                        column(1030),
                        relu(),
                        row(520),
                        tanh(),
                        ColumnParallelLinear.builder().setUnits(519).optGatherOutput(true).build());
        Block plain = sequence(linear(1030), relu(), linear(520), tanh(), linear(519));
        train(kind, parallel).assertSame(train(PLAIN, plain), 1e-5);
    }

    private static TrainingRun train(TrainerKind kind, Block block) {
        Shape input = new Shape(4, 75, 513); // 300 rows: 256, 32 and a rest
        return TrainingRun.of(
                kind,
                block,
                Loss.l2Loss(),
                input,
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < STEPS; step++) {
                        NDArray data = random(manager, step, input.getShape());
                        NDArray labels = random(manager, 9 + step, 4, 75, 519);
                        numbers.add(backward(trainer, data, labels));
                        trainer.step();
                    }
                });
    }
}
