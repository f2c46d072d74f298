package io.djltp.job;

import java.util.Map;
import java.util.Objects;
import java.util.Optional;

/**
 * What a launcher said about this process.
 *
 * @param launcher the launcher: {@code torchrun}, {@code Open MPI} or {@code Slurm}, or a name of
 *     the caller's
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

    private static final String SLURM = "Slurm";
    private static final String LOOPBACK = "127.0.0.1";
    private static final String MASTER_ADDR = "MASTER_ADDR";
    private static final String MASTER_PORT = "MASTER_PORT";
    private static final int MAX_PORT = 65535;
    private static final int SLURM_PORTS = 20_000;

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
        if (masterPort < 0 || masterPort > MAX_PORT) {
            throw new IllegalArgumentException(
                    "The master's port %d is not one: give a port from 1 to %d, or 0 if unknown"
                            .formatted(masterPort, MAX_PORT));
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
     * Reads what torchrun (and Kubernetes), Open MPI or Slurm has set, in this order.
     *
     * @param environment the environment variables
     * @return what the launcher said, or empty if there is none
     * @throws IllegalArgumentException if the variables are set in part only, or malformed
     */
    public static Optional<LaunchEnvironment> detect(Map<String, String> environment) {
        if (isSet(environment, "RANK") || isSet(environment, "WORLD_SIZE")) {
            return Optional.of(torchrun(environment));
        }
        if (isSet(environment, "OMPI_COMM_WORLD_RANK")
                || isSet(environment, "OMPI_COMM_WORLD_SIZE")) {
            return Optional.of(openMpi(environment));
        }
        // the other variables of Slurm are there in an allocation too, where nothing was launched
        if (isSet(environment, "SLURM_PROCID")) {
            return Optional.of(slurm(environment));
        }
        return Optional.empty();
    }

    private static LaunchEnvironment torchrun(Map<String, String> environment) {
        int processes = count(environment, "WORLD_SIZE", "RANK");
        int process = index(environment, "RANK", "WORLD_SIZE", processes);
        int local = localIndex(environment, "LOCAL_RANK");
        String address = environment.get(MASTER_ADDR);
        int port = port(environment);
        if (processes > 1 && !isSet(environment, MASTER_ADDR)) {
            throw missing(MASTER_ADDR, "WORLD_SIZE=" + processes, "to the host of RANK 0");
        }
        if (processes > 1 && port == 0) {
            throw missing(
                    MASTER_PORT, "WORLD_SIZE=" + processes, "to a free port of the host of RANK 0");
        }
        String run = torchrunRun(environment);
        if (!run.isEmpty()) {
            if (environment.get("WORLD_SIZE").equals(environment.get("LOCAL_WORLD_SIZE"))) {
                // all on this machine, whose name may stand for an address that others reach
                address = LOOPBACK;
            }
            if ("true".equalsIgnoreCase(environment.get("TORCHELASTIC_USE_AGENT_STORE"))) {
                // torchrun's own agent listens there
                port = MasterPort.derive(run);
            }
        }
        return new LaunchEnvironment(
                "torchrun", process, processes, local, trim(address), port, run);
    }

    /**
     * Returns the name of the run: that of torchrun ("none" for all to whom none was given), the
     * port, which no other agent of the host has, and how often it was started anew. The agents of
     * several machines count that for themselves, and not always alike.
     */
    private static String torchrunRun(Map<String, String> environment) {
        if (!isSet(environment, "TORCHELASTIC_RUN_ID")) {
            return "";
        }
        String run =
                "torchrun "
                        + environment.get("TORCHELASTIC_RUN_ID")
                        + " "
                        + environment.get(MASTER_PORT);
        return "1".equals(environment.get("GROUP_WORLD_SIZE"))
                ? run + " " + environment.get("TORCHELASTIC_RESTART_COUNT")
                : run;
    }

    private static LaunchEnvironment openMpi(Map<String, String> environment) {
        String size = "OMPI_COMM_WORLD_SIZE";
        int processes = count(environment, size, "OMPI_COMM_WORLD_RANK");
        int process = index(environment, "OMPI_COMM_WORLD_RANK", size, processes);
        int local = localIndex(environment, "OMPI_COMM_WORLD_LOCAL_RANK");
        String address = trim(environment.get(MASTER_ADDR));
        return new LaunchEnvironment(
                "Open MPI", process, processes, local, address, port(environment));
    }

    private static LaunchEnvironment slurm(Map<String, String> environment) {
        int processes = count(environment, "SLURM_NTASKS", "SLURM_PROCID");
        int process = index(environment, "SLURM_PROCID", "SLURM_NTASKS", processes);
        int local = localIndex(environment, "SLURM_LOCALID");
        String address = trim(environment.get(MASTER_ADDR));
        if (address == null) {
            // of a step on one machine nobody needs to know the name
            boolean one = "1".equals(trim(environment.get("SLURM_STEP_NUM_NODES")));
            address = one ? LOOPBACK : slurmMaster(environment);
        }
        if (address == null && processes > 1) {
            throw missing(
                    "SLURM_STEP_NODELIST",
                    "SLURM_NTASKS=" + processes,
                    "by starting with srun, or set MASTER_ADDR to the host of task 0");
        }
        int port = port(environment);
        String run = "";
        if (port == 0 && isSet(environment, "SLURM_JOB_ID")) {
            long job = jobId(environment);
            port = SLURM_PORTS + (int) (job % SLURM_PORTS);
            // the steps of a job may run at the same time
            run = "Slurm " + job + "." + environment.get("SLURM_STEP_ID");
        }
        return new LaunchEnvironment(SLURM, process, processes, local, address, port, run);
    }

    boolean isSlurm() {
        return launcher.equals(SLURM);
    }

    private static String slurmMaster(Map<String, String> environment) {
        String[] names = {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"};
        for (String name : names) {
            if (isSet(environment, name)) {
                return SlurmNodes.first(name, environment.get(name));
            }
        }
        return null;
    }

    private static long jobId(Map<String, String> environment) {
        String value = environment.get("SLURM_JOB_ID").trim();
        try {
            return Long.parseUnsignedLong(value) & Long.MAX_VALUE;
        } catch (NumberFormatException e) {
            throw malformed("SLURM_JOB_ID", value, "the number of the job");
        }
    }

    private static int count(Map<String, String> environment, String name, String partner) {
        if (!isSet(environment, name)) {
            throw missing(
                    name,
                    partner + "=" + environment.get(partner),
                    "to the number of processes, or unset " + partner);
        }
        int value = number(environment, name, "a number of processes, 1 or more");
        if (value < 1) {
            throw malformed(name, environment.get(name), "a number of processes, 1 or more");
        }
        return value;
    }

    private static int index(Map<String, String> environment, String name, String size, int count) {
        if (!isSet(environment, name)) {
            throw missing(
                    name,
                    size + "=" + environment.get(size),
                    "to the number of this process, from 0, or unset " + size);
        }
        String wanted = "a number from 0 to %d, because %s=%d".formatted(count - 1, size, count);
        int value = number(environment, name, wanted);
        if (value < 0 || value >= count) {
            throw malformed(name, environment.get(name), wanted);
        }
        return value;
    }

    private static int localIndex(Map<String, String> environment, String name) {
        if (!isSet(environment, name)) {
            return 0;
        }
        String wanted = "the number of this process on its machine, from 0";
        int value = number(environment, name, wanted);
        if (value < 0) {
            throw malformed(name, environment.get(name), wanted);
        }
        return value;
    }

    private static int port(Map<String, String> environment) {
        if (!isSet(environment, MASTER_PORT)) {
            return 0;
        }
        String wanted = "a port from 1 to " + MAX_PORT;
        int port = number(environment, MASTER_PORT, wanted);
        if (port < 1 || port > MAX_PORT) {
            throw malformed(MASTER_PORT, environment.get(MASTER_PORT), wanted);
        }
        return port;
    }

    private static int number(Map<String, String> environment, String name, String wanted) {
        try {
            return Integer.parseInt(environment.get(name).trim());
        } catch (NumberFormatException e) {
            throw malformed(name, environment.get(name), wanted);
        }
    }

    private static boolean isSet(Map<String, String> environment, String name) {
        return trim(environment.get(name)) != null;
    }

    private static String trim(String value) {
        return value == null || value.isBlank() ? null : value.trim();
    }

    private static IllegalArgumentException malformed(String name, String value, String wanted) {
        return new IllegalArgumentException(
                "The environment variable %s is '%s': set it to %s".formatted(name, value, wanted));
    }

    private static IllegalArgumentException missing(String name, String other, String remedy) {
        return new IllegalArgumentException(
                "The environment variable %s is not set although %s: set it %s"
                        .formatted(name, other, remedy));
    }
}
