package io.djltp.environment;

import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;

/**
 * What a launcher said about this process.
 *
 * @param launcher the launcher: {@code torchrun}, {@code Kubernetes}, {@code Open MPI} or {@code
 *     Slurm}, or a name of the caller's
 * @param process the number of this process, from 0
 * @param processes the number of processes
 * @param localProcess the number of this process on its machine, from 0
 * @param masterAddress the host on which process 0 runs, or {@code null} if unknown
 * @param masterPort the port at which process 0 listens, or 0 if unknown
 * @param run what tells this run of the job from all other runs and jobs, the same text in all its
 *     processes; empty if the launcher has no name for it. Process 0 of a run that has one may
 *     listen at another port if {@code masterPort} is taken, and is found there
 */
public record LaunchEnvironment(
        String launcher,
        int process,
        int processes,
        int localProcess,
        String masterAddress,
        int masterPort,
        String run) {

    private static final int POD_PORT = 29500;

    /**
     * Checks that the numbers fit together.
     *
     * @param launcher the launcher
     * @param process the number of this process
     * @param processes the number of processes
     * @param localProcess the number of this process on its machine
     * @param masterAddress the host on which process 0 runs, or {@code null} if unknown
     * @param masterPort the port at which process 0 listens, or 0 if unknown
     * @param run what tells this run of the job from all others, or empty
     */
    public LaunchEnvironment {
        Objects.requireNonNull(run, "run");
        if (processes < 1 || process < 0 || process >= processes) {
            throw new IllegalArgumentException(
                    "Process %d of %d does not exist: number the processes from 0 to %d"
                            .formatted(process, processes, Math.max(processes, 1) - 1));
        }
        if (masterPort < 0 || masterPort > LaunchVariables.MAX_PORT) {
            throw new IllegalArgumentException(
                    "The master's port %d is not one: give a port from 1 to %d, or 0 if unknown"
                            .formatted(masterPort, LaunchVariables.MAX_PORT));
        }
    }

    /**
     * Creates what a launcher said that has no name for the run.
     *
     * @param launcher the launcher
     * @param process the number of this process
     * @param processes the number of processes
     * @param localProcess the number of this process on its machine
     * @param masterAddress the host on which process 0 runs, or {@code null} if unknown
     * @param masterPort the port at which process 0 listens, or 0 if unknown
     */
    public LaunchEnvironment(
            String launcher,
            int process,
            int processes,
            int localProcess,
            String masterAddress,
            int masterPort) {
        this(launcher, process, processes, localProcess, masterAddress, masterPort, "");
    }

    /**
     * Reads what torchrun, an indexed Job of Kubernetes, Open MPI or Slurm has set, in this order.
     *
     * <p>{@code TP_MASTER_PORT}, where it is set, is the port of process 0 whatever the launcher
     * says, and the only one: for firewalls that let few ports through.
     *
     * @param environment the environment variables
     * @return what the launcher said, or empty if there is none
     * @throws IllegalArgumentException if the variables are set in part only, or malformed
     */
    public static Optional<LaunchEnvironment> detect(Map<String, String> environment) {
        LaunchVariables variables = new LaunchVariables(environment);
        return found(variables).map(found -> found.at(variables.ownPort()));
    }

    private static Optional<LaunchEnvironment> found(LaunchVariables variables) {
        if (variables.isSet("RANK")) {
            return Optional.of(TorchrunVariables.read(variables));
        }
        // a Job of pods that have nothing to do with each other says no number of them
        if (variables.isSet("JOB_COMPLETION_INDEX") && variables.isSet("WORLD_SIZE")) {
            return Optional.of(kubernetes(variables));
        }
        if (variables.isSet("WORLD_SIZE")) {
            return Optional.of(TorchrunVariables.read(variables));
        }
        if (variables.isSet("OMPI_COMM_WORLD_RANK") || variables.isSet("OMPI_COMM_WORLD_SIZE")) {
            return Optional.of(openMpi(variables));
        }
        return SlurmVariables.isTask(variables)
                ? Optional.of(SlurmVariables.read(variables))
                : Optional.empty();
    }

    /** A pod has an address of its own, so that each job can have the same port. */
    private static LaunchEnvironment kubernetes(LaunchVariables variables) {
        int processes = variables.count("WORLD_SIZE", "JOB_COMPLETION_INDEX");
        int process = variables.index("JOB_COMPLETION_INDEX", "WORLD_SIZE", processes);
        String address = variables.masterAddress();
        if (address == null && processes > 1) {
            throw LaunchVariables.missing(
                    LaunchVariables.MASTER_ADDR,
                    "WORLD_SIZE=" + processes,
                    "to the name of the pod of index 0, which is JOB-0.SERVICE with a headless"
                            + " Service of the Job's subdomain");
        }
        int port = variables.masterPort();
        return new LaunchEnvironment(
                "Kubernetes", process, processes, 0, address, port == 0 ? POD_PORT : port);
    }

    private static LaunchEnvironment openMpi(LaunchVariables variables) {
        String size = "OMPI_COMM_WORLD_SIZE";
        int processes = variables.count(size, "OMPI_COMM_WORLD_RANK");
        int process = variables.index("OMPI_COMM_WORLD_RANK", size, processes);
        int local = variables.localIndex("OMPI_COMM_WORLD_LOCAL_RANK");
        String address = variables.masterAddress();
        String localSize = "OMPI_COMM_WORLD_LOCAL_SIZE";
        if (address == null && variables.isSet(localSize)) {
            boolean one = variables.get(localSize).equals(variables.get(size));
            address = one ? LaunchVariables.LOOPBACK : null;
        }
        String others = size + "=" + processes;
        if (address == null && processes > 1) {
            throw LaunchVariables.missing(
                    LaunchVariables.MASTER_ADDR,
                    others,
                    "to the host of process 0, with MASTER_PORT and TP_SECRET: mpirun -x"
                            + " MASTER_ADDR=.. -x MASTER_PORT=.. -x TP_SECRET ..");
        }
        int port = variables.masterPort();
        String run = "";
        if (port == 0 && variables.isSet("PMIX_NAMESPACE")) {
            run = "Open MPI " + variables.get("PMIX_NAMESPACE");
            port = MasterPort.derive(run);
        }
        if (port == 0 && processes > 1) {
            throw LaunchVariables.missing(
                    LaunchVariables.MASTER_PORT, others, "to a free port of the host of process 0");
        }
        return new LaunchEnvironment("Open MPI", process, processes, local, address, port, run);
    }

    /**
     * Returns the ports at which process 0 may listen: that of the launcher, and if the launcher
     * names the run, some more in case that is taken.
     *
     * @return the ports, the same in all processes of the run, in the order in which they are tried
     */
    public List<Integer> masterPorts() {
        return MasterPort.candidates(this);
    }

    private LaunchEnvironment at(int port) {
        return port == 0
                ? this
                : new LaunchEnvironment(
                        launcher, process, processes, localProcess, masterAddress, port);
    }
}
