package io.djltp.plan;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.LambdaBlock;
import ai.djl.training.ParameterStore;

import io.djltp.torch.RandomState;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Tries whether a function commutes with a cut of the features: f of each part is that part of f of
 * the whole. What a function does cannot be seen from its name; the analysis of the first step
 * refuses it if it does something else then.
 */
final class ElementwiseProbe {

    private static final Logger logger = LoggerFactory.getLogger(ElementwiseProbe.class);
    private static final int ROWS = 3;
    private static final int MOST_FEATURES = 64;
    private static final double ROUNDING =
            1e-5; // vectors and what is left over may be rounded otherwise

    private ElementwiseProbe() {}

    /**
     * Tries a function.
     *
     * @param function the function
     * @param features the number of features that it will get; fewer are tried if they are many
     * @return whether it commutes, and returns one array of the shape of its argument
     */
    static boolean commutes(LambdaBlock function, long features) {
        int width = (int) Math.min(features, MOST_FEATURES);
        if (width < 2) {
            return false;
        }
        try (RandomState state = RandomState.save();
                NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            boolean same = commutes(function, manager, width);
            state.restore(); // it may have drawn
            return same;
        } catch (RuntimeException e) {
            logger.debug("{} is not elementwise", function.getName(), e);
            return false;
        }
    }

    private static boolean commutes(LambdaBlock function, NDManager manager, int width) {
        float[] values = new float[ROWS * width];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (3 * Math.sin(1 + 7.3 * i)); // of both signs, no two alike
        }
        NDArray x = manager.create(values, new Shape(ROWS, width));
        float[] whole = apply(function, x, width);
        int from = 0;
        for (int to : new int[] {width / 2, width}) {
            float[] part =
                    apply(
                            function,
                            x.get(new NDIndex(":, {}:{}", from, to)).duplicate(),
                            to - from);
            for (int row = 0; row < ROWS; row++) {
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
        if (!y.getShape().equals(new Shape(ROWS, width))) {
            throw new IllegalArgumentException("It makes " + y.getShape() + " of " + x.getShape());
        }
        return y.toFloatArray();
    }
}
