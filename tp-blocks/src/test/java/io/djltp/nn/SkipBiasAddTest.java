package io.djltp.nn;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newRow;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.Refusals;

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

    @Test(timeOut = 60_000)
    public void outputAndBiasAreTheOutputWithIt() {
        Network.of(SkipBiasAddTest::network, HalfSquareLoss::new, Network.regression(4, 5, 3))
                .assertEqual(TENSOR_1, TENSOR_2, TENSOR_3, TENSOR_4, MESH_2X2);
        Network.of(cut -> network(true), HalfSquareLoss::new, Network.regression(4, 5, 3))
                .assertEqual(TENSOR_2); // without ranks, too
    }

    @Test
    public void thereHasToBeABias() {
        Refusals.throwsArgument(
                () -> newRow(3).optBias(false).optSkipBiasAdd(true).build(), "optBias(true)");
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
