package io.djltp.environment;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

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
        @Nullable String masterAddress,
        int masterPort,
        String run) {

    private static final int MAX_PORT = 65535;

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
            throw Errors.argument(
                    "Process %d of %d does not exist: number the processes from 0 to %d",
                    process, processes, Math.max(processes, 1) - 1);
        }
        Errors.check(
                masterPort >= 0 && masterPort <= MAX_PORT,
                "The master's port %d is not one: give a port from 1 to %d, or 0 if unknown",
                masterPort,
                MAX_PORT);
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
            @Nullable String masterAddress,
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
        return new Variables(environment).read();
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

    /**
     * Environment variables of launchers, read with errors that name the variable and the remedy.
     */
    private static final class Variables {

        private static final String RANK = "RANK";
        private static final String WORLD_SIZE = "WORLD_SIZE";
        private static final String MASTER_ADDR = "MASTER_ADDR";
        private static final String MASTER_PORT = "MASTER_PORT";
        private static final String LOOPBACK = "127.0.0.1";
        private static final int POD_PORT = 29500;
        private static final String POD_INDEX = "JOB_COMPLETION_INDEX";
        private static final String MPI_RANK = "OMPI_COMM_WORLD_RANK";
        private static final String MPI_SIZE = "OMPI_COMM_WORLD_SIZE";
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

        private final Map<String, String> values;
        private final int ownPort; // that stands above the launcher's, or 0
        private @Nullable String address; // of process 0
        private int port; // of process 0, or 0
        private String run = "";
        private int process;
        private int processes;
        private int localProcess;
        private String others = ""; // the variable that says how many processes there are

        Variables(Map<String, String> values) {
            this.values = values;
            ownPort = port("TP_MASTER_PORT");
            address = get(MASTER_ADDR);
        }

        Optional<LaunchEnvironment> read() {
            // a Job of pods that have nothing to do with each other says no number of them
            if (get(RANK) == null && get(POD_INDEX) != null && get(WORLD_SIZE) != null) {
                return Optional.of(kubernetes());
            }
            if (get(RANK) != null || get(WORLD_SIZE) != null) {
                return Optional.of(torchrun());
            }
            if (get(MPI_RANK) != null || get(MPI_SIZE) != null) {
                return Optional.of(openMpi());
            }
            return isSlurmTask() ? Optional.of(slurm()) : Optional.empty();
        }

        private LaunchEnvironment found(String launcher) {
            return new LaunchEnvironment(
                    launcher,
                    process,
                    processes,
                    localProcess,
                    address,
                    ownPort == 0 ? port : ownPort,
                    ownPort == 0 ? run : "");
        }

        /** Reads the variables with the number of processes, that of this one, and both here. */
        private void readProcess(String size, String rank, String localRank) {
            processes = count(size, rank);
            process = index(rank, size, processes);
            localProcess = localIndex(localRank);
            others = size + "=" + processes;
            port = port(MASTER_PORT);
        }

        /** Checks that a variable is there which several processes need. */
        private void need(boolean found, String name, String remedy) {
            require(found || processes == 1, name, others, remedy);
        }

        /** Reads what torchrun sets, and who sets the same by hand. */
        private LaunchEnvironment torchrun() {
            readProcess(WORLD_SIZE, RANK, "LOCAL_RANK");
            need(address != null, MASTER_ADDR, "to the host of RANK 0");
            need(port + ownPort > 0, MASTER_PORT, "to a free port of the host of RANK 0");
            if (get("TORCHELASTIC_RUN_ID") != null) {
                // "none" for all to whom no name was given; the port, which no other agent of the
                // host has; and how often it was started anew. The agents of several machines count
                // that for themselves, and not always alike
                run = "torchrun " + get("TORCHELASTIC_RUN_ID") + " " + get(MASTER_PORT);
                if ("1".equals(get("GROUP_WORLD_SIZE"))) {
                    run += " " + get("TORCHELASTIC_RESTART_COUNT");
                }
                if (Objects.equals(get(WORLD_SIZE), get("LOCAL_WORLD_SIZE"))) {
                    // all on this machine, whose name may stand for an address that others reach
                    address = LOOPBACK;
                }
                if ("true".equalsIgnoreCase(get("TORCHELASTIC_USE_AGENT_STORE"))) {
                    // torchrun's own agent listens there
                    port = MasterPort.derive(run);
                }
            }
            return found("torchrun");
        }

        /** A pod has an address of its own, so that each job can have the same port. */
        private LaunchEnvironment kubernetes() {
            readProcess(WORLD_SIZE, POD_INDEX, "");
            need(
                    address != null,
                    MASTER_ADDR,
                    "to the name of the pod of index 0, which is JOB-0.SERVICE with a headless"
                            + " Service of the Job's subdomain");
            port = port == 0 ? POD_PORT : port;
            return found("Kubernetes");
        }

        private LaunchEnvironment openMpi() {
            readProcess(MPI_SIZE, MPI_RANK, "OMPI_COMM_WORLD_LOCAL_RANK");
            if (address == null
                    && Objects.equals(get(MPI_SIZE), get("OMPI_COMM_WORLD_LOCAL_SIZE"))) {
                address = LOOPBACK;
            }
            need(
                    address != null,
                    MASTER_ADDR,
                    "to the host of process 0, with MASTER_PORT and TP_SECRET: mpirun -x"
                            + " MASTER_ADDR=.. -x MASTER_PORT=.. -x TP_SECRET ..");
            if (port == 0 && get("PMIX_NAMESPACE") != null) {
                run = "Open MPI " + get("PMIX_NAMESPACE");
                port = MasterPort.derive(run);
            }
            need(port > 0, MASTER_PORT, "to a free port of the host of process 0");
            return found("Open MPI");
        }

        /**
         * Returns whether srun has started this process. The other variables of Slurm are there in
         * an allocation too, where nothing was launched, and the script of sbatch even has a
         * number.
         */
        private boolean isSlurmTask() {
            String task = get(SLURM_PROCID);
            String step = get(SLURM_STEP_ID);
            if (task == null || step == null) {
                return task != null && (get(SLURM_JOB_ID) == null || !task.equals("0"));
            }
            return !step.matches("\\d{10}") || Long.parseLong(step) < NO_STEP;
        }

        /** Reads what Slurm sets for the tasks of a step. */
        private LaunchEnvironment slurm() {
            readProcess(SLURM_NTASKS, SLURM_PROCID, "SLURM_LOCALID");
            if (address == null) {
                // of a step on one machine nobody needs to know the name
                boolean one = "1".equals(get("SLURM_STEP_NUM_NODES"));
                address = one ? LOOPBACK : firstNode();
            }
            need(
                    address != null,
                    "SLURM_STEP_NODELIST",
                    "by starting with srun, or set MASTER_ADDR to the host of task 0");
            if (port == 0 && get(SLURM_JOB_ID) != null) {
                long job = slurmJob();
                port = SLURM_PORTS + (int) (job % SLURM_PORTS);
                // the steps of a job may run at the same time, and a job that was requeued has the
                // number that it had
                run = "Slurm " + job + "." + get(SLURM_STEP_ID);
                if (get("SLURM_RESTART_COUNT") != null) {
                    run += " " + get("SLURM_RESTART_COUNT");
                }
            }
            return found("Slurm");
        }

        private long slurmJob() {
            try {
                return Long.parseUnsignedLong(get(SLURM_JOB_ID)) & Long.MAX_VALUE;
            } catch (NumberFormatException e) {
                throw malformed(SLURM_JOB_ID, "the number of the job");
            }
        }

        /**
         * Returns the first host of a list such as {@code gpu[003-007,12],cpu1}, if there is one.
         */
        private @Nullable String firstNode() {
            for (String name :
                    List.of("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")) {
                String list = get(name);
                if (list != null) {
                    Matcher first = FIRST_HOST.matcher(list);
                    String range = first.matches() ? first.group(1) : "";
                    String host = RANGE.matcher(range).replaceAll("$1").trim();
                    Errors.check(
                            !host.isEmpty() && !host.contains("[") && !host.contains("]"),
                            "The environment variable %s is '%s', which is not a list of hosts such"
                                    + " as gpu[01-04],cpu1: set MASTER_ADDR to the host of process"
                                    + " 0",
                            name,
                            list);
                    return host;
                }
            }
            return null;
        }

        /** Returns a value without blanks around it, or {@code null} if it is not set or blank. */
        private @Nullable String get(String name) {
            String value = values.get(name);
            return value == null || value.isBlank() ? null : value.trim();
        }

        private int count(String name, String partner) {
            require(
                    get(name) != null,
                    name,
                    partner + "=" + values.get(partner),
                    "to the number of processes, or unset " + partner);
            return number(name, 1, Integer.MAX_VALUE, "a number of processes, 1 or more");
        }

        private int index(String name, String size, int count) {
            require(
                    get(name) != null,
                    name,
                    size + "=" + values.get(size),
                    "to the number of this process, from 0, or unset " + size);
            String wanted =
                    "a number from 0 to %d, because %s=%d".formatted(count - 1, size, count);
            return number(name, 0, count - 1, wanted);
        }

        private int localIndex(String name) {
            String wanted = "the number of this process on its machine, from 0";
            return get(name) == null ? 0 : number(name, 0, Integer.MAX_VALUE, wanted);
        }

        /** Returns a port, or 0 if it is not set. */
        private int port(String name) {
            return get(name) == null
                    ? 0
                    : number(name, 1, MAX_PORT, "a port from 1 to " + MAX_PORT);
        }

        private int number(String name, int least, int most, String wanted) {
            try {
                int value = Integer.parseInt(get(name));
                if (value >= least && value <= most) {
                    return value;
                }
            } catch (NumberFormatException e) {
                throw malformed(name, wanted);
            }
            throw malformed(name, wanted);
        }

        private IllegalArgumentException malformed(String name, String wanted) {
            return new IllegalArgumentException(
                    "The environment variable %s is '%s': set it to %s"
                            .formatted(name, values.get(name), wanted));
        }

        private static void require(boolean found, String name, String other, String remedy) {
            if (!found) {
                throw Errors.argument(
                        "The environment variable %s is not set although %s: set it %s",
                        name, other, remedy);
            }
        }
    }
}
