package io.djltp.plan;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.transformer.PointwiseFeedForwardBlock;
import ai.djl.training.ParameterStore;

import io.djltp.internal.torch.RandomDraws;
import io.djltp.nn.ParallelDropout;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;

/**
 * Finds linear layers that follow each other in a sequence with nothing but elementwise operations
 * between: the output features of the first and the input features of the second are cut alike, and
 * one all-reduce does for both.
 */
final class LinearPairs {

    private static final Logger logger = LoggerFactory.getLogger(LinearPairs.class);
    private static final int PROBED_ROWS = 3;
    private static final int MOST_PROBED_FEATURES = 64;
    private static final double ROUNDING =
            1e-5; // vectors and what is left over may be rounded otherwise

    private final int ranks;

    /**
     * Creates a search.
     *
     * @param ranks the number of ranks: of layers with fewer features between none are cut
     */
    LinearPairs(int ranks) {
        this.ranks = ranks;
    }

    /**
     * Finds the pairs of a sequence.
     *
     * @param block a block
     * @return the style of the layers of each pair; none if the block is not DJL's own sequence
     */
    Map<Block, Style> in(Block block) {
        Map<Block, Style> styles = new IdentityHashMap<>();
        if (!isSequence(block)) {
            return styles;
        }
        List<Block> children = block.getChildren().values();
        Block first = null;
        for (Block child : children) {
            boolean linear = Styles.isLinear(child) && Collections.frequency(children, child) == 1;
            if (linear && first != null) {
                styles.put(first, Style.column());
                styles.put(child, Style.row());
                first = null;
            } else if (linear && Styles.units(child) >= ranks) {
                first = child;
            } else if (first != null && !isElementwise(child, Styles.units(first))) {
                first = null;
            }
        }
        return styles;
    }

    /**
     * Returns whether a block passes what each of its children returns to the next, and no more.
     */
    static boolean isSequence(Block block) {
        boolean known =
                block.getClass() == SequentialBlock.class
                        || block.getClass() == PointwiseFeedForwardBlock.class;
        return known && !((SequentialBlock) block).isReturnIntermediate();
    }

    /** Returns whether a block does the same to each feature, whichever else are there. */
    static boolean isElementwise(Block block, long features) {
        return block.getClass() == Dropout.class
                || block instanceof ParallelDropout
                || block.getClass() == LambdaBlock.class && commutes((LambdaBlock) block, features);
    }

    /**
     * Tries whether a function commutes with a cut of the features: f of each part is that part of
     * f of the whole. What a function does cannot be seen from its name; the analysis of the first
     * step refuses it if it does something else then.
     */
    private static boolean commutes(LambdaBlock function, long features) {
        int width = (int) Math.min(features, MOST_PROBED_FEATURES);
        if (width < 2) {
            return false;
        }
        byte[] state = RandomDraws.getState();
        try (NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            boolean same = commutes(function, manager, width);
            RandomDraws.setState(state); // it may have drawn
            return same;
        } catch (RuntimeException e) {
            logger.debug("{} is not elementwise", function.getName(), e);
            return false;
        }
    }

    private static boolean commutes(LambdaBlock function, NDManager manager, int width) {
        float[] values = new float[PROBED_ROWS * width];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (3 * Math.sin(1 + 7.3 * i)); // of both signs, no two alike
        }
        NDArray x = manager.create(values, new Shape(PROBED_ROWS, width));
        float[] whole = apply(function, x, width);
        int from = 0;
        for (int to : new int[] {width / 2, width}) {
            float[] part =
                    apply(
                            function,
                            x.get(new NDIndex(":, {}:{}", from, to)).duplicate(),
                            to - from);
            for (int row = 0; row < PROBED_ROWS; row++) {
                for (int i = from; i < to; i++) {
                    float expected = whole[row * width + i];
                    float actual = part[row * (to - from) + i - from];
                    if (!(Math.abs(actual - expected)
                            <= ROUNDING * Math.max(1, Math.abs(expected)))) {
                        return false; // a NaN, too
                    }
                }
            }
            from = to;
        }
        return true;
    }

    private static float[] apply(LambdaBlock function, NDArray x, int width) {
        ParameterStore none = new ParameterStore(x.getManager(), false);
        NDArray y = function.forward(none, new NDList(x.duplicate()), false).singletonOrThrow();
        if (!y.getShape().equals(new Shape(PROBED_ROWS, width))) {
            throw new IllegalArgumentException("It makes " + y.getShape() + " of " + x.getShape());
        }
        return y.toFloatArray();
    }
}
