package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.recurrent.RecurrentBlock;
import ai.djl.training.ParameterStore;

/**
 * Whether a recurrent block of DJL takes axis 0 for the time. It does not tell: it is tried with
 * two by two vectors, of which the first is changed. What comes later in time changes with it, and
 * what is of another row does not.
 */
final class TimeMajor {

    private TimeMajor() {}

    /** Returns whether axis 0 is the time, as far as the weights show it. */
    static boolean is(RecurrentBlock block, NDManager manager) {
        if (!block.isInitialized() || block.describeInput().isEmpty()) {
            return false;
        }
        Shape input = block.describeInput().get(0).getValue();
        try (NDManager scope = manager.newSubManager()) {
            ParameterStore store = new ParameterStore(scope, false);
            NDArray changed = scope.zeros(new Shape(2, 2, input.get(2)));
            NDArray before = secondOf(block, store, changed);
            changed.set(new NDIndex("0, 0"), 1);
            return !secondOf(block, store, changed).equals(before);
        } catch (RuntimeException e) {
            return false; // it cannot be computed, which the first pass will say
        }
    }

    private static NDArray secondOf(RecurrentBlock block, ParameterStore store, NDArray input) {
        return block.forward(store, new NDList(input), false).head().get(1);
    }
}
