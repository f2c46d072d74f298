package io.djltp.nn;

import static io.djltp.nn.SequenceParallelTest.column;
import static io.djltp.nn.SequenceParallelTest.norm;
import static io.djltp.nn.SequenceParallelTest.row;
import static io.djltp.nn.SequenceParallelTest.sequences;
import static io.djltp.testing.Blocks.gelu;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import ai.djl.nn.Block;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.loss.Loss;

import io.djltp.testing.Blocks;
import io.djltp.testing.Network;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.function.Supplier;

/** What cannot be computed of a rank's tokens is refused before the first step. */
public class SequenceRefusedTest {

    @DataProvider
    public static Object[][] networks() {
        return new Object[][] {
            {"a loss on a rank's tokens", 7, in(() -> linear(6)), "has this rank's tokens only"},
            {"tokens scattered twice", 7, in(() -> new SequenceScatter()), "are cut already"},
            {"tokens gathered twice", 7, twice(), "not cut over the ranks"},
            {"fewer tokens than ranks", 2, out(() -> linear(6)), "axis 1 of (4, 2, 6) has 2: pad"},
            {"a slice scattered", 7, seq(() -> plain(9), SequenceScatter::new), "a slice of the"},
            {"a layer without the option", 7, in(() -> plain(9)), "optSequenceParallel(true)"},
            {"a head", 7, in(() -> head(6)), "put a SequenceGather before the layer"},
            {"a softmax, of any axis", 7, out(() -> map(x -> x.softmax(1))), "softmax"},
            {
                "a mean of the tokens",
                7,
                out(() -> map(x -> x.mean(new int[] {1}, true))),
                "mean does not commute"
            },
            {
                "a mean of a single token",
                3,
                out(() -> map(x -> x.mean(new int[] {1}, true))),
                "mean"
            },
            {
                "attention",
                7,
                out(() -> map(x -> x.matMul(x.transpose(0, 2, 1)).matMul(x))),
                "matMul does not commute"
            },
            {"tokens reversed", 7, out(() -> map(x -> x.flip(1))), "flip"},
            {"tokens cut off", 7, out(() -> map(x -> x.get(":, 1:"))), "get does not"},
            {"batch statistics", 7, out(() -> BatchNorm.builder().build()), "tokens"},
            {
                "DJL's norm of all tokens",
                7,
                out(() -> LayerNorm.builder().build()),
                "its tokens only"
            },
            {"rows put together", 7, out(() -> reshape(-1, 6)), "no longer this rank's part"},
            {
                "a sum of cut and whole",
                7,
                seq(() -> sum(linear(6), sequence(new SequenceScatter(), linear(6)))),
                "its tokens only"
            },
            {
                "a sum of cut and whole that could be broadcast",
                3,
                seq(() -> sum(linear(6), sequence(new SequenceScatter(), linear(6)))),
                "of one of them a rank has its tokens only"
            },
            {
                "a row-parallel layer without the option in a residual",
                7,
                out(() -> sum(map(x -> x), sequence(column(true, 9), gelu(), row(true, 6, false)))),
                "its tokens only"
            },
        };
    }

    private static Supplier<Block> in(Supplier<Block> block) {
        return seq(() -> linear(6), SequenceScatter::new, block);
    }

    private static Supplier<Block> out(Supplier<Block> block) {
        return seq(
                () -> linear(6), SequenceScatter::new, () -> norm(2), block, SequenceGather::new);
    }

    private static Supplier<Block> twice() {
        return seq(() -> linear(6), SequenceScatter::new, SequenceGather::new, SequenceGather::new);
    }

    private static Block plain(long units) {
        return Blocks.column(units);
    }

    @SafeVarargs
    private static Supplier<Block> seq(Supplier<? extends Block>... blocks) {
        return () -> {
            Block[] all = new Block[blocks.length];
            for (int i = 0; i < all.length; i++) {
                all[i] = blocks[i].get();
            }
            return sequence(all);
        };
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void isRefused(String name, int tokens, Supplier<Block> block, String message) {
        Network.of(cut -> block.get(), Loss::l2Loss, sequences(6, tokens))
                .assertRefused(TENSOR_3, false, message);
    }

    /** In MIXED mode the rows of the batch are cut over the same ranks. */
    @Test(timeOut = 60_000)
    public void mixedMode() {
        Network.of(
                        cut ->
                                sequence(
                                        head(9),
                                        gelu(),
                                        row(true, 6, false),
                                        new SequenceScatter(),
                                        new SequenceGather()),
                        Loss::l2Loss,
                        sequences(6, 7))
                .assertRefused(MIXED_2, "MIXED mode the rows of");
    }
}
