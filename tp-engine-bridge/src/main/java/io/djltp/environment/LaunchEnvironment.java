package io.djltp.environment;

import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

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

    private static final String WORLD_SIZE = "WORLD_SIZE";
    private static final String TORCHRUN_ID = "TORCHELASTIC_RUN_ID";
    private static final String SLURM_STEP_ID = "SLURM_STEP_ID";
    private static final String SLURM_JOB_ID = "SLURM_JOB_ID";
    private static final String SLURM_PROCID = "SLURM_PROCID";
    private static final String SLURM_NTASKS = "SLURM_NTASKS";
    private static final int SLURM_PORTS = 20_000;

    /** From this number on, a step is no step: it is a batch script, or a shell of salloc. */
    private static final long NO_STEP = 0xfffffff0L;

    /** A host of a list: up to a comma that is in no brackets. */
    private static final Pattern FIRST_HOST =
            Pattern.compile("((?:[^,\\[]|\\[[^\\]]*\\])*)(?:,.*)?", Pattern.DOTALL);

    /** Numbers of hosts in brackets, of which the first is wanted. */
    private static final Pattern RANGE =
            Pattern.compile("\\[\\s*([\\p{L}\\p{N}]+)\\s*(?:[-,][^\\]]*)?\\]");

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
            return Optional.of(torchrun(variables));
        }
        // a Job of pods that have nothing to do with each other says no number of them
        if (variables.isSet("JOB_COMPLETION_INDEX") && variables.isSet("WORLD_SIZE")) {
            return Optional.of(kubernetes(variables));
        }
        if (variables.isSet("WORLD_SIZE")) {
            return Optional.of(torchrun(variables));
        }
        if (variables.isSet("OMPI_COMM_WORLD_RANK") || variables.isSet("OMPI_COMM_WORLD_SIZE")) {
            return Optional.of(openMpi(variables));
        }
        return isSlurmTask(variables) ? Optional.of(slurm(variables)) : Optional.empty();
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

    /** Reads what torchrun sets, and who sets the same by hand. */
    private static LaunchEnvironment torchrun(LaunchVariables variables) {
        int processes = variables.count(WORLD_SIZE, "RANK");
        int process = variables.index("RANK", WORLD_SIZE, processes);
        int local = variables.localIndex("LOCAL_RANK");
        String address = variables.masterAddress();
        int port = variables.masterPort();
        if (processes > 1 && address == null) {
            throw LaunchVariables.missing(
                    LaunchVariables.MASTER_ADDR,
                    "WORLD_SIZE=" + processes,
                    "to the host of RANK 0");
        }
        if (processes > 1 && port == 0 && variables.ownPort() == 0) {
            throw LaunchVariables.missing(
                    LaunchVariables.MASTER_PORT,
                    "WORLD_SIZE=" + processes,
                    "to a free port of the host of RANK 0");
        }
        String run = torchrunRun(variables);
        if (!run.isEmpty()) {
            if (variables.get(WORLD_SIZE).equals(variables.get("LOCAL_WORLD_SIZE"))) {
                // all on this machine, whose name may stand for an address that others reach
                address = LaunchVariables.LOOPBACK;
            }
            if ("true".equalsIgnoreCase(variables.get("TORCHELASTIC_USE_AGENT_STORE"))) {
                // torchrun's own agent listens there
                port = MasterPort.derive(run);
            }
        }
        return new LaunchEnvironment("torchrun", process, processes, local, address, port, run);
    }

    /**
     * Returns the name of the run: that of torchrun ("none" for all to whom none was given), the
     * port, which no other agent of the host has, and how often it was started anew. The agents of
     * several machines count that for themselves, and not always alike.
     */
    private static String torchrunRun(LaunchVariables variables) {
        if (!variables.isSet(TORCHRUN_ID)) {
            return "";
        }
        String port = variables.get(LaunchVariables.MASTER_PORT);
        String run = "torchrun " + variables.get(TORCHRUN_ID) + " " + port;
        return "1".equals(variables.get("GROUP_WORLD_SIZE"))
                ? run + " " + variables.get("TORCHELASTIC_RESTART_COUNT")
                : run;
    }

    /**
     * Returns whether srun has started this process. The other variables of Slurm are there in an
     * allocation too, where nothing was launched, and the script of sbatch even has a number.
     */
    private static boolean isSlurmTask(LaunchVariables variables) {
        if (!variables.isSet(SLURM_PROCID)) {
            return false;
        }
        if (variables.isSet(SLURM_STEP_ID)) {
            String step = variables.get(SLURM_STEP_ID);
            return !step.matches("\\d{10}") || Long.parseLong(step) < NO_STEP;
        }
        return !variables.isSet(SLURM_JOB_ID) || !variables.get(SLURM_PROCID).equals("0");
    }

    /** Reads what Slurm sets for the tasks of a step. */
    private static LaunchEnvironment slurm(LaunchVariables variables) {
        int processes = variables.count(SLURM_NTASKS, SLURM_PROCID);
        int process = variables.index(SLURM_PROCID, SLURM_NTASKS, processes);
        int local = variables.localIndex("SLURM_LOCALID");
        String address = variables.masterAddress();
        if (address == null) {
            // of a step on one machine nobody needs to know the name
            boolean one = "1".equals(variables.get("SLURM_STEP_NUM_NODES"));
            address = one ? LaunchVariables.LOOPBACK : firstNode(variables);
        }
        if (address == null && processes > 1) {
            throw LaunchVariables.missing(
                    "SLURM_STEP_NODELIST",
                    "SLURM_NTASKS=" + processes,
                    "by starting with srun, or set MASTER_ADDR to the host of task 0");
        }
        int port = variables.masterPort();
        String run = "";
        if (port == 0 && variables.isSet(SLURM_JOB_ID)) {
            long job = job(variables);
            port = SLURM_PORTS + (int) (job % SLURM_PORTS);
            // the steps of a job may run at the same time, and a job that was requeued has the
            // number that it had
            run = "Slurm " + job + "." + variables.get(SLURM_STEP_ID);
            if (variables.isSet("SLURM_RESTART_COUNT")) {
                run += " " + variables.get("SLURM_RESTART_COUNT");
            }
        }
        return new LaunchEnvironment("Slurm", process, processes, local, address, port, run);
    }

    private static String firstNode(LaunchVariables variables) {
        String[] names = {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"};
        for (String name : names) {
            if (variables.isSet(name)) {
                return firstHost(name, variables.get(name));
            }
        }
        return null;
    }

    private static long job(LaunchVariables variables) {
        String value = variables.get(SLURM_JOB_ID);
        try {
            return Long.parseUnsignedLong(value) & Long.MAX_VALUE;
        } catch (NumberFormatException e) {
            throw LaunchVariables.malformed(SLURM_JOB_ID, value, "the number of the job");
        }
    }

    /**
     * Returns the first host of a list as Slurm writes them, such as {@code gpu[003-007,12],cpu1}.
     *
     * @param variable the variable that holds the list
     * @param list the list
     * @return the name of the host
     */
    private static String firstHost(String variable, String list) {
        Matcher first = FIRST_HOST.matcher(list);
        String host = first.matches() ? RANGE.matcher(first.group(1)).replaceAll("$1").trim() : "";
        if (host.isEmpty() || host.contains("[") || host.contains("]")) {
            throw new IllegalArgumentException(
                    ("The environment variable %s is '%s', which is not a list of hosts such as"
                                    + " gpu[01-04],cpu1: set MASTER_ADDR to the host of process 0")
                            .formatted(variable, list));
        }
        return host;
    }
}
