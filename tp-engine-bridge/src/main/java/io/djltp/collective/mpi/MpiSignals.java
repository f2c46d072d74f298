package io.djltp.collective.mpi;

import com.sun.jna.Function;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps the JVM's signal handlers in place. UCX, one of the transports of Open MPI, takes over
 * SIGSEGV when it is loaded, by which the JVM notices null pointers and stack overflows: the first
 * {@link NullPointerException} in compiled code would end the process.
 */
final class MpiSignals {

    private static final Logger logger = LoggerFactory.getLogger(MpiSignals.class);

    private static final String VARIABLE = "UCX_ERROR_SIGNALS";

    private MpiSignals() {}

    /** Tells UCX to leave the signals alone, unless the user has said something else. */
    static void leaveToJava() {
        try {
            // the environment of the process, which System.getenv does not see change
            Function.getFunction("c", "setenv").invokeInt(new Object[] {VARIABLE, "", 0});
        } catch (UnsatisfiedLinkError e) {
            logger.debug("{} cannot be set", VARIABLE, e);
        }
    }
}
