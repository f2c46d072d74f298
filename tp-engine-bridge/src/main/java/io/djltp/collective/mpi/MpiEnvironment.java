package io.djltp.collective.mpi;

import java.util.Map;

/** What the variables of a process say of how it was started, before MPI is. */
public final class MpiEnvironment {

    private MpiEnvironment() {}

    /**
     * Returns whether this process was started by Open MPI.
     *
     * @param environment the environment variables
     * @return whether there are others, or could be
     */
    public static boolean launchedByMpi(Map<String, String> environment) {
        return environment.containsKey("OMPI_COMM_WORLD_SIZE");
    }

    /**
     * Says why MPI would end a process that starts it: {@code srun} has started it, without what
     * MPI finds its processes by.
     *
     * @param environment the environment variables
     * @return the reason, or {@code null} if MPI can be started
     */
    public static String refusal(Map<String, String> environment) {
        boolean srun = environment.containsKey("SLURM_PROCID");
        boolean mpi =
                launchedByMpi(environment)
                        || environment.containsKey("PMIX_RANK")
                        || environment.containsKey("PMI_RANK");
        return srun && !mpi
                ? "srun has started this process without MPI: use tcp, or start with mpirun or"
                        + " srun --mpi=pmix"
                : null;
    }
}
