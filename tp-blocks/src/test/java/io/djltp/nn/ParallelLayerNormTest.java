package io.djltp.nn;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.norm.LayerNorm;

import io.djltp.testing.BlockTraining;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;

import org.testng.Assert;
import org.testng.annotations.Test;

/** A layer norm of features that ranks share out is that of all features. */
public class ParallelLayerNormTest {

    private static BlockTraining training(String data, String labels, int axis) {
        return new BlockTraining(
                () ->
                        sequence(
                                linear(6),
                                column(7),
                                ParallelLayerNorm.builder().axis(axis).optEpsilon(0.1f).build(),
                                tanh(),
                                row(3)),
                Network.batches(data, labels),
                null);
    }

    @Test(timeOut = 60_000)
    public void isThatOfAllFeatures() {
        training("5x4", "5x3", 1)
                .assertEqual(TENSOR_1, DATA_2, TENSOR_2, TENSOR_3, MESH_2X3, TENSOR_4);
        training("4x2x5", "4x2x3", 2).assertEqual(TENSOR_2, TENSOR_3, MESH_2X2);
    }

    /** One for itself, one of the row layer behind it forward and of the column layer backward. */
    @Test(timeOut = 60_000)
    public void communicatesOnceEachWay() {
        BlockTraining training = training("5x4", "5x3", 1);
        training.assertCounts(TENSOR_1, "none", "none");
        training.assertCounts(
                TENSOR_3, "1 all-reduce, 1 all-gather", "1 all-reduce, 1 reduce-scatter");
    }

    @Test(timeOut = 60_000)
    public void isRefusedOfAWholeInput() {
        Network.of(
                        cut ->
                                sequence(
                                        linear(6),
                                        cut
                                                ? ParallelLayerNorm.builder().build()
                                                : LayerNorm.builder().build(),
                                        linear(3)),
                        HalfSquareLoss::new,
                        Network.batches("5x4", "5x3"))
                .assertRefused(TENSOR_2, "ParallelLayerNorm of 6 features needs a slice");
    }

    @Test
    public void isRefusedOverSeveralAxes() {
        Block norm = ParallelLayerNorm.builder().build();
        try (NDManager manager = NDManager.newBaseManager()) {
            Exception e =
                    Assert.expectThrows(
                            IllegalArgumentException.class,
                            () -> norm.initialize(manager, DataType.FLOAT32, new Shape(2, 3, 4)));
            Assert.assertTrue(e.getMessage().contains("build it with axis(2)"), e.getMessage());
        }
    }
}
