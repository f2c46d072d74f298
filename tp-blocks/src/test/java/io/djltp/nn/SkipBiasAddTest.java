package io.djltp.nn;

import static io.djltp.testing.Blocks.linear;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

/** Conformance case 10: an output without its bias, and the bias, are the output with it. */
public class SkipBiasAddTest {

    private static Block network(boolean cut) {
        GraphBlock block =
                new GraphBlock(
                        new Shape(3),
                        (call, input) -> {
                            NDList y = call.list("column", input.head());
                            NDArray x = cut ? y.get(0).add(y.get(1)) : y.head();
                            NDList z = call.list("row", x.tanh());
                            return new NDList(cut ? z.get(0).add(z.get(1)) : z.head());
                        });
        Block column =
                cut
                        ? ColumnParallelLinear.builder().setUnits(7).optSkipBiasAdd(true).build()
                        : linear(7);
        Block row =
                cut
                        ? RowParallelLinear.builder().setUnits(3).optSkipBiasAdd(true).build()
                        : linear(3);
        return block.add("column", column, 5).add("row", row, 7);
    }

    private static TrainingRun train(TrainerKind kind, Block block) {
        return TrainingRun.of(
                kind,
                block,
                new HalfSquareLoss(),
                new Shape(4, 5),
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        NDArray data = TrainingRun.random(manager, i, 4, 5);
                        NDArray labels = TrainingRun.random(manager, 9 + i, 4, 3);
                        numbers.add(TrainingRun.backward(trainer, data, labels));
                        trainer.step();
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void outputAndBiasAreTheOutputWithIt() {
        TrainingRun plain = train(TrainerKind.PLAIN, network(false));
        train(TrainerKind.PLAIN, network(true)).assertSame(plain, 1e-6);
        for (int ranks = 1; ranks <= 4; ranks++) {
            train(new TrainerKind(ParallelMode.TENSOR, ranks), network(true))
                    .assertSame(plain, 1e-5);
        }
        train(TrainerKind.mesh(2, 2), network(true)).assertSame(plain, 1e-5);
    }

    @Test
    public void thereHasToBeABias() {
        Refusals.expect(
                IllegalArgumentException.class,
                () ->
                        RowParallelLinear.builder()
                                .setUnits(3)
                                .optBias(false)
                                .optSkipBiasAdd(true)
                                .build(),
                "optBias(true)");
    }

    @Test
    public void theBiasIsTheSecondOutput() {
        Block layer = ColumnParallelLinear.builder().setUnits(7).optSkipBiasAdd(true).build();
        try (NDManager manager = NDManager.newBaseManager()) {
            layer.initialize(manager, DataType.FLOAT32, new Shape(4, 5));
            Assert.assertEquals(
                    layer.getOutputShapes(new Shape[] {new Shape(4, 5)}),
                    new Shape[] {new Shape(4, 7), new Shape(7)});
        }
    }
}
