package io.djltp.plan;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.Dropout;
import ai.djl.training.ParameterStore;

import io.djltp.internal.Errors;
import io.djltp.internal.torch.RandomDraws;
import io.djltp.nn.ParallelDropout;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.lang.reflect.Method;
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

    private LinearPairs() {}

    /**
     * Finds the pairs of a sequence.
     *
     * @param block a block
     * @param ranks the number of ranks: of layers with fewer features between none are cut
     * @return the style of the layers of each pair; none if the block is not a sequence
     */
    static Map<Block, BlockStyle> in(Block block, int ranks) {
        Map<Block, BlockStyle> styles = new IdentityHashMap<>();
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
     * Returns whether a block passes what each of its children returns to the next, and no more:
     * DJL's sequence, or a subclass that adds blocks to it and leaves its forward pass alone.
     */
    private static boolean isSequence(Block block) {
        if (!(block instanceof SequentialBlock sequence) || sequence.isReturnIntermediate()) {
            return false;
        }
        for (Class<?> type = block.getClass();
                type != SequentialBlock.class;
                type = type.getSuperclass()) {
            for (Method method : type.getDeclaredMethods()) {
                if (method.getName().startsWith("forward")) {
                    return false;
                }
            }
        }
        return true;
    }

    /** Returns whether a block does the same to each feature, whichever else are there. */
    private static boolean isElementwise(Block block, long features) {
        return block.getClass() == Dropout.class
                || block instanceof ParallelDropout
                || block.getClass() == LambdaBlock.class && commutes((LambdaBlock) block, features);
    }

    /**
     * Tries whether a function commutes with a cut of the features: f of each part is that part of
     * f of the whole. What a function does cannot be seen from its name.
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
        // of both signs, no two alike
        NDArray places = manager.arange(PROBED_ROWS * width).toType(DataType.FLOAT32, false);
        NDArray x = places.mul(7.3).add(1).sin().mul(3).reshape(PROBED_ROWS, width);
        NDArray whole = apply(function, x);
        for (int half = 0; half < 2; half++) {
            int middle = width / 2;
            NDIndex features = new NDIndex(":, {}:{}", half * middle, half == 0 ? middle : width);
            NDArray expected = whole.get(features);
            NDArray most = expected.abs().maximum(1).mul(ROUNDING);
            NDArray part = apply(function, x.get(features).duplicate());
            if (!part.sub(expected).abs().lte(most).all().getBoolean()) { // a NaN is not, too
                return false;
            }
        }
        return true;
    }

    private static NDArray apply(LambdaBlock function, NDArray x) {
        ParameterStore none = new ParameterStore(x.getManager(), false);
        NDArray y = function.forward(none, new NDList(x.duplicate()), false).singletonOrThrow();
        Errors.check(
                y.getShape().equals(x.getShape()), "It makes %s of %s", y.getShape(), x.getShape());
        return y;
    }
}
