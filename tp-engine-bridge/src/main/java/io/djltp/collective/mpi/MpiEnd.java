package io.djltp.collective.mpi;

import com.sun.jna.Function;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;

/**
 * The end of MPI, with that of the process.
 *
 * <p>{@code MPI_Finalize} waits for all other processes, and process 0 may save and evaluate long
 * after them; a process that exits without it makes {@code mpirun} stop all others. Open MPI is
 * therefore asked to end each process for itself: when its communicators are closed, nothing is on
 * its way any more. Where that is not heard (UCX waits all the same), the wait is bounded.
 */
public final class MpiEnd {

    /** How long a process waits for the others in its end. */
    static final Duration PATIENCE = Duration.ofSeconds(60);

    private static final Logger logger = LoggerFactory.getLogger(MpiEnd.class);

    private static final String VARIABLE = "OMPI_MCA_async_mpi_finalize";

    private static boolean hooked;

    private MpiEnd() {}

    /**
     * Ends MPI when the process ends. Later calls do nothing.
     *
     * @param world the world
     */
    public static synchronized void withTheProcess(MpiWorld world) {
        if (!hooked) {
            hooked = true;
            Thread end = new Thread(() -> await(world, PATIENCE), "tp-mpi-end");
            Runtime.getRuntime().addShutdownHook(end);
        }
    }

    /** Asks Open MPI, before it is started, not to wait; what the user has set counts. */
    static void askNotToWait() {
        try {
            // the environment of the process, which System.getenv does not see change
            Function.getFunction("c", "setenv").invokeInt(new Object[] {VARIABLE, "1", 0});
        } catch (UnsatisfiedLinkError e) {
            logger.debug("{} cannot be set", VARIABLE, e);
        }
    }

    /**
     * Ends MPI, or goes without it when the others do not come to their end.
     *
     * @param world the world
     * @param patience how long to wait for them
     * @return whether MPI has ended
     */
    static boolean await(MpiWorld world, Duration patience) {
        Thread end = new Thread(world::close, "tp-mpi-finalize");
        end.setDaemon(true);
        end.start();
        try {
            end.join(patience.toMillis());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        if (end.isAlive()) {
            logger.warn(
                    "MPI has not ended within {} s, because other processes have not come to their"
                            + " end: process {} goes without it, and mpirun will stop the others",
                    patience.toSeconds(),
                    world.getRank());
        }
        return !end.isAlive();
    }
}
