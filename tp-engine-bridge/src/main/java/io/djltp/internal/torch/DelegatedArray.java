package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

/** An array or a manager that stands before another one, and says more of it. */
public interface DelegatedArray {

    /**
     * Returns what this stands before.
     *
     * @return an array, or a manager, of DJL's engine
     */
    Object getDelegate();

    /** A manager that stands before another one. */
    interface Manager extends DelegatedArray {

        /**
         * Returns an array that was computed with arrays of this manager as those arrays are.
         *
         * @param array an array of the engine, attached to the manager that this stands before
         * @return what stands before it
         */
        NDArray wrap(NDArray array);
    }

    /**
     * Returns an array of the engine.
     *
     * @param array an array, or what stands before one
     * @return the array itself
     */
    static NDArray unwrap(NDArray array) {
        return array instanceof DelegatedArray own ? (NDArray) own.getDelegate() : array;
    }

    /**
     * Returns a manager of the engine.
     *
     * @param manager a manager, or what stands before one
     * @return the manager itself
     */
    static NDManager unwrap(NDManager manager) {
        return manager instanceof DelegatedArray own ? (NDManager) own.getDelegate() : manager;
    }
}
