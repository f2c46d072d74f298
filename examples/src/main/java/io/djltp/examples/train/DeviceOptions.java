package io.djltp.examples.train;

import ai.djl.Device;
import ai.djl.engine.Engine;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.examples.BadInputException;
import io.djltp.job.Job;
import io.djltp.launch.Backend;
import io.djltp.launch.Launcher;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.Option;
import picocli.CommandLine.TypeConversionException;

import java.time.Duration;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** The options that say where ranks compute, and how they reach each other. */
public final class DeviceOptions {

    static final int DEFAULT_RANKS = 2;

    /** Where the ranks compute. */
    public enum DeviceName {
        /** The processor. */
        CPU,
        /** A GPU for each. */
        GPU;

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

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

    /** Creates the options, which are set by the command line. */
    public DeviceOptions() {}

    /** Checks what can be checked before anything is read or written. */
    public void check() {
        positive("--timeout", timeoutSeconds);
    }

    /**
     * Returns how many processes a launcher has started.
     *
     * @return the number of processes, 1 without a launcher
     */
    public static int processes() {
        return BadInputException.check("", () -> Launcher.processes(System.getenv()));
    }

    /**
     * Returns the number of ranks where nothing else says it.
     *
     * @param tp the number that was given, or {@code null}
     * @return that, or one for each process, or without a launcher 2
     */
    public static int ranks(@Nullable Integer tp) {
        return ranks(tp, DEFAULT_RANKS);
    }

    /**
     * Returns the number of ranks where nothing else says it.
     *
     * @param tp the number that was given, or {@code null}
     * @param alone the number without a launcher
     * @return the first of them that is there, or one for each process
     */
    static int ranks(@Nullable Integer tp, int alone) {
        int processes = processes();
        if (tp != null) {
            return tp;
        }
        // an engine that gives one process, where it gave several before, means one rank
        boolean launched = LaunchEnvironment.detect(System.getenv()).isPresent();
        return launched ? processes : alone;
    }

    /**
     * Returns the mesh of {@code --mesh}.
     *
     * @param text its sizes, such as {@code 2x3}
     * @param tp the number of ranks that was given, or {@code null}
     * @return the mesh
     */
    public static DeviceMesh mesh(String text, @Nullable Integer tp) {
        DeviceMesh mesh = BadInputException.check("--mesh: ", () -> DeviceMesh.parse(text));
        if (tp != null && tp != mesh.getRanks()) {
            throw new BadInputException(
                    "--mesh %s has %d ranks, and --tp is %d: leave --tp out, or choose sizes whose"
                            + " product is %d",
                    text, mesh.getRanks(), tp, tp);
        }
        return mesh;
    }

    /**
     * Refuses ranks of which processes would have more or fewer than others.
     *
     * @param ranks the number of ranks of all processes
     * @param subject what the message calls them
     */
    public static void checkShared(int ranks, String subject) {
        int processes = processes();
        if (ranks % processes != 0) {
            throw new BadInputException(
                    "%s cannot be shared evenly by the %d processes that were started: use a"
                            + " multiple of %d",
                    subject, processes, processes);
        }
    }

    /**
     * Joins the job that a launcher has started.
     *
     * @param ranks the number of ranks of all processes
     * @return the job, or {@code null} if this process is alone
     */
    public @Nullable Job join(int ranks) {
        return join(ranks, timeout());
    }

    /**
     * Joins the job that a launcher has started.
     *
     * @param ranks the number of ranks of all processes
     * @param timeout how long to wait for the other processes
     * @return the job, or {@code null} if this process is alone
     */
    public static @Nullable Job join(int ranks, Duration timeout) {
        return BadInputException.check("", () -> Launcher.join(System.getenv(), ranks, timeout));
    }

    /**
     * Begins the configuration of the ranks.
     *
     * @param job the job, or {@code null}
     * @param mesh how they are arranged
     * @return the configuration, to be built
     */
    public ParallelConfig.Builder config(@Nullable Job job, DeviceMesh mesh) {
        return ParallelConfig.builder()
                .setMesh(mesh)
                .optJob(job)
                .optDevices(devices(job, mesh.getRanks()))
                .optBackend(backend)
                .optTimeout(timeout());
    }

    /**
     * Returns the devices of this process's ranks: GPUs in the order of the processes of a machine.
     */
    private List<Device> devices(@Nullable Job job, int ranks) {
        int local = job == null ? ranks : job.getLocalRanks();
        if (device == DeviceName.CPU) {
            return Collections.nCopies(local, Device.cpu());
        }
        int first = Launcher.localProcess(System.getenv()) * local;
        return IntStream.range(first, first + local).mapToObj(Device::gpu).toList();
    }

    /**
     * Refuses devices that are not here and backends that cannot be used, on all processes alike.
     *
     * @param job the job, or {@code null}
     * @param ranks the number of ranks of all processes
     */
    public void checkDevices(@Nullable Job job, int ranks) {
        List<Device> devices = devices(job, ranks);
        String obstacle = missingGpus(devices);
        if (obstacle == null) {
            Backend chosen = backend.choose(devices, job);
            obstacle =
                    chosen.whyNot(devices, job)
                            .map(why -> "--backend " + chosen.getName() + ": " + why)
                            .orElse(null);
        }
        if (job != null) {
            job.check("The choice of devices", obstacle);
        } else if (obstacle != null) {
            throw new BadInputException(obstacle);
        }
    }

    /** {@return why the GPUs do not suffice, or {@code null}} */
    private @Nullable String missingGpus(List<Device> devices) {
        if (device == DeviceName.CPU) {
            return null;
        }
        return missingGpus(1 + devices.stream().mapToInt(Device::getDeviceId).max().orElse(-1));
    }

    /**
     * Looks for GPUs.
     *
     * @param needed how many are needed
     * @return why they do not suffice, or {@code null}
     */
    public static @Nullable String missingGpus(int needed) {
        int found = Engine.getInstance().getGpuCount();
        if (needed <= found) {
            return null;
        }
        return ("--device gpu takes one GPU for each rank, %d here, and PyTorch finds %d: use"
                        + " %s--device cpu; docs/gpu.md says what GPUs need")
                .formatted(needed, found, found > 0 ? "--tp " + found + ", or " : "");
    }

    private Duration timeout() {
        return Duration.ofSeconds(timeoutSeconds);
    }

    /**
     * Refuses a number that is not greater than 0, or is infinite.
     *
     * @param option the option
     * @param number its number, or {@code null} if it was not given
     */
    public static void positive(String option, @Nullable Number number) {
        double value = number == null ? 1 : number.doubleValue();
        if (!(value > 0)) {
            String shown = value == Math.rint(value) ? Long.toString((long) value) : "" + value;
            throw new BadInputException(option + " must be greater than 0, not " + shown);
        }
        if (Double.isInfinite(value)) {
            throw new BadInputException(option + " must be finite, not " + value);
        }
    }

    /** Reads the name of a backend, and lists the names for the help. */
    static final class BackendOption implements ITypeConverter<Backend>, Iterable<String> {

        BackendOption() {}

        /** {@inheritDoc} */
        @Override
        public Backend convert(String value) {
            try {
                return Backend.of(value);
            } catch (IllegalArgumentException e) {
                throw new TypeConversionException(
                        "expected one of %s (case-insensitive) but was '%s'"
                                .formatted(names(), value));
            }
        }

        /** {@inheritDoc} */
        @Override
        public Iterator<String> iterator() {
            return names().iterator();
        }

        private static List<String> names() {
            return Stream.of(Backend.values()).map(Backend::getName).toList();
        }
    }
}
