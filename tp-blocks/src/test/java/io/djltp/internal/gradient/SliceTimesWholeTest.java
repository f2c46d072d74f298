package io.djltp.internal.gradient;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_3X2;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;
import ai.djl.nn.ParallelBlock;

import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.Test;

import java.util.function.Function;

/** A slice of the features, and one number for all of them that each rank computes alike. */
public class SliceTimesWholeTest {

    private static Block product(Block... blocks) {
        return new ParallelBlock(
                        list ->
                                new NDList(
                                        list.stream()
                                                .map(NDList::head)
                                                .reduce(NDArray::mul)
                                                .orElseThrow()))
                .addAll(blocks);
    }

    private static Network network(Block first, Function<Boolean, Block> gate) {
        return Network.of(
                cut -> sequence(first, product(column(cut, 8), gate.apply(cut)), row(cut, 4)),
                HalfSquareLoss::new,
                Network.regression(5, 6, 4));
    }

    /** A rank has a summand of the gate's gradient: of its rows and of its features. */
    @Test(timeOut = 60_000)
    public void aGateOfTheInput() {
        network(Blocks.identityBlock(), cut -> linear(1))
                .assertEqual(TENSOR_2, TENSOR_3, MESH_2X2, MESH_3X2);
    }

    /** The input itself, without parameters. */
    @Test(timeOut = 60_000)
    public void aFeatureOfTheInput() {
        network(Blocks.identityBlock(), cut -> map(x -> x.get(":, :1")))
                .assertEqual(TENSOR_2, MESH_2X2);
    }

    /** What layers over ranks have computed is the same on all ranks, and so is its gradient. */
    @Test(timeOut = 60_000)
    public void aGateOfAnotherPairOfLayers() {
        Network net = network(Blocks.identityBlock(), cut -> sequence(column(cut, 6), row(cut, 1)));
        for (TrainerKind kind : new TrainerKind[] {TENSOR_2, MESH_2X2}) {
            net.assertRefused(
                    kind,
                    "of the other a rank has the whole",
                    "optGatherOutput(true)",
                    "RowParallelLinear");
        }
    }
}
