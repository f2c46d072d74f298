package io.djltp.examples.train;

import ai.djl.Device;
import ai.djl.engine.Engine;

import io.djltp.examples.BadInputException;
import io.djltp.job.Job;
import io.djltp.launch.Backend;
import io.djltp.launch.Connector;
import io.djltp.launch.Launcher;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;

import picocli.CommandLine.Option;

import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.stream.IntStream;

/** The options that say which ranks train, where, and how they share the work. */
final class RankOptions {

    /** Where the ranks compute. */
    enum DeviceName {
        CPU,
        GPU
    }

    private static final int DEFAULT_RANKS = 2;

    @Option(
            names = "--tp",
            description =
                    "Number of ranks of all processes (2, or one for each process that a launcher"
                            + " has started, or those of the --mesh).")
    private Integer tp;

    @Option(
            names = "--mode",
            description =
                    "tensor: head cut, all ranks on the same batch; data: batch cut; mixed: body"
                            + " data parallel, head cut (mixed, if there is no --mesh).")
    private ParallelMode mode;

    @Option(
            names = "--mesh",
            description =
                    "Takes the place of --mode: sizes of the axes data and tensor, such as 2x3:"
                            + " the batch is cut over 2 groups of ranks, and the head over the 3"
                            + " ranks of each.")
    private String meshText;

    @Option(
            names = "--backend",
            defaultValue = "auto",
            converter = BackendOption.class,
            completionCandidates = BackendOption.class,
            description =
                    "What carries out the collective operations: ${COMPLETION-CANDIDATES}"
                            + " (${DEFAULT-VALUE}).")
    Backend backend;

    @Option(
            names = "--device",
            defaultValue = "cpu",
            description =
                    "${COMPLETION-CANDIDATES}; with gpu, each rank has one (${DEFAULT-VALUE}).")
    DeviceName device;

    @Option(
            names = "--timeout",
            defaultValue = "300",
            description =
                    "Seconds after which a rank that does not come counts as lost"
                            + " (${DEFAULT-VALUE}).")
    int timeoutSeconds;

    @Option(
            names = "--drift-check",
            description =
                    "Compare the replicas of parameters every so many steps; 0 for never (after"
                            + " steps 1, 2, 4, 8, ... and at the end).")
    Integer driftCheckSteps;

    DeviceMesh mesh;

    /** Checks everything that can be checked before anything is read or written. */
    void check() {
        int processes = processes();
        mesh = meshText == null ? meshOfMode(processes) : checkedMesh();
        positive("--timeout", timeoutSeconds);
        if (driftCheckSteps != null && driftCheckSteps < 0) {
            throw new BadInputException("--drift-check must be 0 or more, not " + driftCheckSteps);
        }
        if (count() % processes != 0) {
            throw new BadInputException(
                    (meshText == null ? "--tp " + count() : "The --mesh " + meshText + " of")
                            + (meshText == null ? "" : " " + count())
                            + " ranks cannot be shared evenly by the "
                            + processes
                            + " processes that were started: use a multiple of "
                            + processes);
        }
    }

    private DeviceMesh meshOfMode(int processes) {
        mode = mode == null ? ParallelMode.MIXED : mode;
        int ranks = tp != null ? tp : processes > 1 ? processes : DEFAULT_RANKS;
        positive("--tp", ranks);
        return DeviceMesh.of(mode, ranks);
    }

    private DeviceMesh checkedMesh() {
        if (mode != null) {
            throw new BadInputException(
                    "--mesh "
                            + meshText
                            + " and --mode "
                            + lowerCase(mode)
                            + " both say how the ranks share the work: use one of the two");
        }
        DeviceMesh parsed;
        try {
            parsed = DeviceMesh.parse(meshText);
        } catch (IllegalArgumentException e) {
            throw new BadInputException("--mesh: " + e.getMessage(), e);
        }
        if (tp != null && tp != parsed.getRanks()) {
            throw new BadInputException(
                    "--mesh "
                            + meshText
                            + " has "
                            + parsed.getRanks()
                            + " ranks, and --tp is "
                            + tp
                            + ": leave --tp out, or choose sizes whose product is "
                            + tp);
        }
        return parsed;
    }

    /** Refuses a batch that leaves ranks without a row. */
    void checkBatch(int batch) {
        int sharing = mesh.isCut(DeviceMesh.DATA) ? mesh.getSize(DeviceMesh.DATA) : 1;
        if (batch < sharing) {
            throw new BadInputException(
                    "--batch "
                            + batch
                            + " is smaller than the "
                            + sharing
                            + (meshText == null ? " ranks" : " groups of ranks")
                            + " that share it "
                            + (meshText == null
                                    ? "in " + lowerCase(mode) + " mode"
                                    : "on --mesh " + meshText)
                            + ": use --batch "
                            + sharing
                            + " or more, or fewer ranks ("
                            + (meshText == null ? "--tp" : "--mesh")
                            + ")");
        }
    }

    /** Returns the number of ranks of all processes. */
    int count() {
        return mesh.getRanks();
    }

    /** Returns whether the head has replicas: it is not cut over all ranks. */
    boolean hasReplicas() {
        return mesh.isCut(DeviceMesh.DATA) && !mesh.isOverlaid();
    }

    /** Returns how many times the head is there, over all ranks. */
    int replicas() {
        return hasReplicas() ? mesh.getSize(DeviceMesh.DATA) : 1;
    }

    /** Returns the mode, or the mesh. */
    String describe() {
        return meshText == null ? "mode " + lowerCase(mode) : "mesh " + meshText;
    }

    /** Returns the mode as it was given, or {@code null} on a mesh. */
    String modeName() {
        return mode == null ? null : lowerCase(mode);
    }

    /** Returns the mesh as it was given, or {@code null} in a mode. */
    String meshName() {
        return meshText;
    }

    private static int processes() {
        try {
            return Launcher.processes(System.getenv());
        } catch (IllegalArgumentException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    /** Joins the job that a launcher has started; {@code null} if this process is alone. */
    Job join() {
        try {
            return Launcher.join(System.getenv(), count(), timeout());
        } catch (IllegalArgumentException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    /** Returns the configuration of the ranks. */
    ParallelConfig config(Job job) {
        ParallelConfig.Builder config =
                ParallelConfig.builder()
                        .setMesh(mesh)
                        .optJob(job)
                        .optDevices(devices(job))
                        .optBackend(backend)
                        .optTimeout(timeout());
        if (driftCheckSteps != null) {
            config.optDriftCheck(driftCheckSteps);
        }
        return config.build();
    }

    /**
     * Returns the devices of this process's ranks: GPUs in the order of the processes of a machine.
     */
    private List<Device> devices(Job job) {
        int local = job == null ? count() : job.getLocalRanks();
        if (device == DeviceName.CPU) {
            return Collections.nCopies(local, Device.cpu());
        }
        int first = Launcher.localProcess(System.getenv()) * local;
        return IntStream.range(first, first + local).mapToObj(Device::gpu).toList();
    }

    /**
     * Refuses devices that are not here and backends that cannot be used, on all processes alike.
     */
    void checkDevices(Job job) {
        List<Device> devices = devices(job);
        String obstacle = missingGpus(devices);
        if (obstacle == null) {
            Backend chosen = Connector.choose(backend, devices, job);
            obstacle =
                    Connector.whyNot(chosen, devices, job)
                            .map(why -> "--backend " + chosen.getName() + ": " + why)
                            .orElse(null);
        }
        if (job != null) {
            job.check("The choice of devices", obstacle);
        } else if (obstacle != null) {
            throw new BadInputException(obstacle);
        }
    }

    private String missingGpus(List<Device> devices) {
        if (device == DeviceName.CPU) {
            return null;
        }
        int found = Engine.getInstance().getGpuCount();
        int needed = 1 + devices.stream().mapToInt(Device::getDeviceId).max().orElse(-1);
        if (needed <= found) {
            return null;
        }
        return "--device gpu takes one GPU for each rank, "
                + needed
                + " here, and PyTorch finds "
                + found
                + ": use "
                + (found > 0 ? "--tp " + found + ", or " : "")
                + "--device cpu; docs/gpu.md says what GPUs need";
    }

    private Duration timeout() {
        return Duration.ofSeconds(timeoutSeconds);
    }

    static String lowerCase(Enum<?> value) {
        return value.name().toLowerCase(Locale.ROOT);
    }

    static void positive(String option, double value) {
        if (!(value > 0)) {
            String shown = value == Math.rint(value) ? Long.toString((long) value) : "" + value;
            throw new BadInputException(option + " must be greater than 0, not " + shown);
        }
    }
}
