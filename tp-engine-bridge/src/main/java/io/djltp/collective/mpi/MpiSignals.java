package io.djltp.collective.mpi;

import com.sun.jna.Function;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps the JVM's signal handlers in place. UCX, which carries Open MPI on InfiniBand, takes over
 * SIGSEGV when it is loaded. The JVM uses it to notice null pointers and stack overflows: UCX would
 * report every {@link NullPointerException} of compiled code as a crash.
 */
final class MpiSignals {

    private static final Logger logger = LoggerFactory.getLogger(MpiSignals.class);

    private static final String VARIABLE = "UCX_ERROR_SIGNALS";

    private MpiSignals() {}

    /** Tells UCX, before it is loaded, to leave the signals alone; what the user has set counts. */
    static void leaveToJava() {
        try {
            // the environment of the process, which System.getenv does not see change
            Function.getFunction("c", "setenv").invokeInt(new Object[] {VARIABLE, "", 0});
        } catch (UnsatisfiedLinkError e) {
            logger.debug("{} cannot be set", VARIABLE, e);
        }
    }
}
