package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.ArrayAssert.floats;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.GraphBlock.graph;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.held;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.step;

import static org.testng.Assert.assertEquals;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;

import io.djltp.job.Job;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Configs;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.ThreadedJob;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** What processes of one job have in common, and what one of them has not. */
public class ProcessesTest {

    private static final Network.Batches BATCHES =
            Network.batches(new int[] {6, 1, 3, 2, 6}, "Rx5", "R:9");

    /** Of two processes the second one has no row of a batch of one. */
    @Test(timeOut = 120_000)
    public void aProcessWithoutARow() throws Exception {
        for (boolean fused : new boolean[] {false, true}) {
            List<float[]> expected = train(null, fused);
            for (List<float[]> actual : ThreadedJob.run(4, job -> train(job, fused))) {
                assertAllClose(actual, expected, 1e-5, "fused " + fused);
            }
        }
    }

    /** Returns the rows, losses and accuracies of all steps, and weights. */
    private static List<float[]> train(Job job, boolean fused) {
        List<float[]> results = new ArrayList<>();
        Block last = fused ? fused(9) : head(9);
        Block block = sequence(linear(6), tanh(), job == null ? linear(9) : last);
        block.setInitializer( // not the generator, which threads share
                (m, shape, type) -> random(m, shape.size(), shape.getShape()), parameter -> true);
        TrainingRun run =
                TrainingRun.of(
                        job == null ? PLAIN : MESH_2X2.in(job),
                        block,
                        Configs.of(new VocabParallelCrossEntropyLoss()),
                        new Shape(6, 5),
                        (trainer, manager, numbers) -> {
                            for (int step = 0; step < 5; step++) {
                                NDList[] batch = BATCHES.make(manager, step);
                                NDList predictions = trainer.evaluate(batch[0]);
                                VocabParallelAccuracy accuracy = new VocabParallelAccuracy();
                                results.add(new float[] {predictions.head().getShape().get(0)});
                                results.add(floats(accuracy.evaluate(batch[1], predictions)));
                                results.add(new float[] {step(trainer, batch[0], batch[1])});
                            }
                        });
        results.addAll(run.getWeights());
        return results;
    }

    /** Processes that have loaded other integers than the first have its integers from then on. */
    @Test(timeOut = 60_000)
    public void integersAreThoseOfTheFirstProcess() throws Exception {
        for (DataType type : List.of(DataType.INT32, DataType.INT64, DataType.BOOLEAN)) {
            for (float[] table : ThreadedJob.run(job -> table(job, type))) {
                assertEquals(table, new float[] {1, 0, 0, 1}, "" + type);
            }
        }
    }

    private static float[] table(Job job, DataType type) {
        GraphBlock block =
                graph(4, (call, x) -> x.add(call.value("table").toType(DataType.FLOAT32, true)));
        Parameter table =
                Parameter.builder()
                        .setName("table")
                        .setType(Parameter.Type.OTHER)
                        .optRequiresGrad(false)
                        .build();
        block.own(table);
        try (Model model = Model.newInstance("table", Device.cpu())) {
            model.setBlock(sequence(block, linear(3)));
            float[] own = {1, job.getProcess(), 0, 1};
            table.setArray(model.getNDManager().create(own).toType(type, true));
            DefaultTrainingConfig config = Configs.of(new HalfSquareLoss());
            try (Trainer trainer = DATA_2.in(job).open(model, config, new Shape(6, 4))) {
                return floats(held(trainer, 0, 0));
            }
        }
    }
}
