package io.djltp.conformance;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.layout.ShardedLayout;
import io.djltp.layout.TokenCut;
import io.djltp.nn.ParallelDropout;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.testing.TrainerKind;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.List;

/**
 * Conformance case 23 (its checkpoint is in RandomNumbersTest): on a mesh of 2 x 2 the ranks of a
 * tensor group drop the same where all compute alike, and other elements each where features or
 * tokens are cut; other data groups drop others. Masks are a function of seed, call and place:
 * there is no state of a generator that a nested region would have to give back.
 */
public class DropoutMasksTest {

    private static final int ROWS = 4;
    private static final int TOKENS = 6;
    private static final int FEATURES = 8;

    /** Makes what a rank has, of ones. */
    @FunctionalInterface
    private interface Input {
        NDArray make(ParallelContext context, NDManager manager);
    }

    private static List<float[]> masks(Input input) {
        ParallelDropout block = ParallelDropout.builder().optRate(0.5f).optSeed(3).build();
        try (RankPool pool = new RankPool(TrainerKind.mesh(2, 2).config());
                NDManager whole = NDManager.newBaseManager()) {
            block.initialize(whole, DataType.FLOAT32, new Shape(2 * ROWS, TOKENS, FEATURES));
            return pool.run(
                    context -> {
                        try (NDManager manager = NDManager.newBaseManager()) {
                            context.beginForward(2L * ROWS, ROWS, true, manager);
                            NDArray ones = input.make(context, manager);

                            RankParameterStore store = new RankParameterStore(manager, context);
                            NDArray kept = block.forward(store, new NDList(ones), true).head();
                            return DelegatedArray.unwrap(kept).toFloatArray();
                        }
                    });
        }
    }

    /** A part of the graph, from which it is known what follows. */
    private static NDArray ones(NDManager manager, long... shape) {
        NDArray leaf = manager.zeros(new Shape(shape));
        leaf.setRequiresGradient(true);
        return leaf.add(1);
    }

    @Test(timeOut = 60_000)
    public void theSameWhereRanksComputeAlike() {
        List<float[]> masks = masks((context, manager) -> ones(manager, ROWS, TOKENS, FEATURES));
        Assert.assertEquals(masks.get(1), masks.get(0), "one tensor group");
        Assert.assertEquals(masks.get(3), masks.get(2), "the other tensor group");
        Assert.assertFalse(Arrays.equals(masks.get(2), masks.get(0)), "other rows");
    }

    @Test(timeOut = 60_000)
    public void othersWhereFeaturesAreCut() {
        assertAllDiffer(
                masks(
                        (context, manager) -> {
                            NDArray slice = ones(manager, ROWS, TOKENS, FEATURES / 2);
                            Cut cut = Cut.balanced(FEATURES, 2);
                            context.getPass().setLayout(slice, new ShardedLayout(cut));
                            return slice;
                        }));
    }

    @Test(timeOut = 60_000)
    public void othersWhereTokensAreCut() {
        assertAllDiffer(
                masks(
                        (context, manager) -> {
                            NDArray own = ones(manager, ROWS, TOKENS / 2, FEATURES);
                            TokenCut cut = new TokenCut(Cut.balanced(TOKENS, 2), 1);
                            return context.getPass().enterTokens(own, cut);
                        }));
    }

    private static void assertAllDiffer(List<float[]> masks) {
        for (int i = 0; i < masks.size(); i++) {
            for (int j = 0; j < i; j++) {
                Assert.assertFalse(
                        Arrays.equals(masks.get(i), masks.get(j)), "ranks " + j + " and " + i);
            }
        }
    }
}
