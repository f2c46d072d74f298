package io.djltp.internal.decode;

import com.sun.jna.Function;
import com.sun.jna.NativeLibrary;

import io.djltp.internal.libtorch.LibTorchFunctions;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The thread of a rank that generates. */
public final class RankThread {

    private static final Logger logger = LoggerFactory.getLogger(RankThread.class);

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

    /**
     * Gives memory back to the system that was freed in this process: what weights were packed
     * from. Does nothing where the C library is not glibc.
     */
    public static void giveBackMemory() {
        try {
            NativeLibrary.getInstance("c").getFunction("malloc_trim").invokeInt(new Object[] {0});
        } catch (UnsatisfiedLinkError e) {
            logger.debug("This C library has no malloc_trim: what was freed stays", e);
        }
    }
}
