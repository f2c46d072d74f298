package io.djltp.internal.decode;

import com.sun.jna.Function;

import io.djltp.internal.libtorch.LibTorchFunctions;

/** The thread of a rank that generates. */
public final class RankThread {

    private RankThread() {}

    /**
     * Lets products of the calling thread run in it alone. XNNPACK's have a pool of threads that
     * all of the process share, and wait for one another there: of ranks with a thread each, none
     * must use it.
     */
    public static void computeAlone() {
        Function leave = LibTorchFunctions.find("_ZN6caffe219_NoPThreadPoolGuard11set_enabledEb");
        if (leave != null) {
            leave.invoke(new Object[] {1});
        }
    }
}
