package io.djltp.examples.train;

import ai.djl.Device;
import ai.djl.engine.Engine;

import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.examples.JsonFile;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.lemma.Language;
import io.djltp.job.Job;
import io.djltp.launch.Backend;
import io.djltp.launch.Connector;
import io.djltp.launch.Launcher;
import io.djltp.layout.ParallelMode;

import picocli.CommandLine.Option;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.stream.IntStream;

/** The options of {@code tp train}. */
final class TrainOptions {

    /** Where the ranks compute. */
    enum DeviceName {
        CPU,
        GPU
    }

    private static final String DEFAULT_OUT = "out/lemma"; // where tp lemma looks, too
    private static final double DEFAULT_MINUTES = 3;
    private static final int DEFAULT_RANKS = 2;
    private static final int MOST_EPOCHS = 1000; // another limit comes first

    @Option(
            names = "--languages",
            defaultValue = "de",
            description = "Dictionaries to learn, any of de,en,pl,uk,ru (${DEFAULT-VALUE}).")
    private String languageCodes;

    @Option(
            names = "--tp",
            description =
                    "Number of ranks of all processes (2, or one for each process that a launcher"
                            + " has started).")
    private Integer tp;

    @Option(
            names = "--mode",
            defaultValue = "mixed",
            description =
                    "tensor: head cut, all ranks on the same batch; data: batch cut; mixed: body"
                            + " data parallel, head cut (${DEFAULT-VALUE}).")
    ParallelMode mode;

    @Option(
            names = "--dim",
            defaultValue = "64",
            description = "Features of a word (${DEFAULT-VALUE}).")
    int dim;

    @Option(
            names = "--batch",
            defaultValue = "512",
            description = "Words of a step, over all ranks (${DEFAULT-VALUE}).")
    int batch;

    @Option(names = "--epochs", description = "End after so many passes over the training words.")
    Integer epochs;

    @Option(
            names = "--steps",
            description = "End after so many steps. No other limit then holds but --epochs.")
    Integer steps;

    @Option(
            names = "--minutes",
            description = "End after so many minutes of training (3 if there are no --steps).")
    Double minutes;

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

    @Option(names = "--lr", description = "Learning rate (depends on the optimizer).")
    Float learningRate;

    @Option(
            names = "--head",
            description =
                    "full: all logits; fused: logits, loss and update in one, a chunk of the"
                            + " classes at a time; sampled: the same with a random part of the"
                            + " classes in each step (sampled).")
    private HeadKind chosenHead;

    @Option(
            names = "--sample-share",
            description =
                    "Share of the classes in a step of --head sampled (12,000 classes, but not less"
                            + " than 0.01 or more than 0.1).")
    Float sampleShare;

    @Option(
            names = "--optimizer",
            defaultValue = "adagrad",
            description = "${COMPLETION-CANDIDATES} (${DEFAULT-VALUE}).")
    OptimizerName optimizer;

    @Option(names = "--seed", defaultValue = "1", description = "Seed (${DEFAULT-VALUE}).")
    int seed;

    @Option(
            names = "--out",
            defaultValue = DEFAULT_OUT,
            description = "Folder for the trained model (${DEFAULT-VALUE}).")
    Path out;

    @Option(names = "--json", description = "File for the figures of the run.")
    Path json;

    List<Language> languages;
    HeadKind head;
    int ranks; // of all processes

    /** Checks everything that can be checked before anything is read or written. */
    void check() {
        try {
            languages = Language.parse(languageCodes);
        } catch (IllegalArgumentException e) {
            throw new BadInputException("--languages: " + e.getMessage(), e);
        }
        int processes = processes();
        ranks = tp != null ? tp : processes > 1 ? processes : DEFAULT_RANKS;
        positive("--tp", ranks);
        positive("--timeout", timeoutSeconds);
        if (driftCheckSteps != null && driftCheckSteps < 0) {
            throw new BadInputException("--drift-check must be 0 or more, not " + driftCheckSteps);
        }
        if (ranks % processes != 0) {
            throw new BadInputException(
                    "--tp "
                            + ranks
                            + " ranks cannot be shared evenly by the "
                            + processes
                            + " processes that were started: use a multiple of "
                            + processes);
        }
        positive("--dim", dim);
        positive("--batch", batch);
        positive("--epochs", epochs == null ? 1 : epochs);
        positive("--steps", steps == null ? 1 : steps);
        positive("--minutes", minutes == null ? 1 : minutes);
        checkHead();
        positive("--lr", learningRate == null ? 1 : learningRate);
        if (mode != ParallelMode.TENSOR && batch < ranks) {
            throw new BadInputException(
                    "--batch "
                            + batch
                            + " is smaller than the "
                            + ranks
                            + " ranks that share it in "
                            + lowerCase(mode)
                            + " mode: use --batch "
                            + ranks
                            + " or more, or fewer ranks (--tp)");
        }
        if (Launcher.process(System.getenv()) == 0) {
            checkOut(); // the others write nothing
        }
        JsonFile.check(json);
    }

    private void checkHead() {
        head = chosenHead != null ? chosenHead : HeadKind.SAMPLED;
        if (sampleShare == null) {
            return;
        }
        if (!(sampleShare > 0 && sampleShare <= 1)) {
            throw new BadInputException(
                    "--sample-share must be greater than 0 and at most 1, not " + sampleShare);
        }
        if (head != HeadKind.SAMPLED) {
            throw new BadInputException(
                    "--sample-share is for --head sampled, not for --head " + lowerCase(head));
        }
    }

    /** Returns the share of the classes in a step of the sampled head. */
    float sampleShare(int classes) {
        return sampleShare != null ? sampleShare : HeadKind.defaultShare(classes);
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
            return Launcher.join(System.getenv(), ranks, timeout());
        } catch (IllegalArgumentException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    /**
     * Returns the devices of this process's ranks: GPUs in the order of the processes of a machine.
     */
    List<Device> devices(Job job) {
        int local = job == null ? ranks : job.getLocalRanks();
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
                            .map(why -> "--backend " + chosen + ": " + why)
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

    /** Returns what to type to use the trained model. */
    String lemmaCommand() {
        String folder = out.toString();
        if (out.equals(Path.of(DEFAULT_OUT))) {
            return "./tp lemma WORD...";
        }
        String quote = folder.contains(" ") ? "\"" : "";
        return "./tp lemma --model " + quote + folder + quote + " WORD...";
    }

    private static String lowerCase(Enum<?> value) {
        return value.name().toLowerCase(Locale.ROOT);
    }

    Duration timeout() {
        return Duration.ofSeconds(timeoutSeconds);
    }

    private static void positive(String option, double value) {
        if (!(value > 0)) {
            String shown = value == Math.rint(value) ? Long.toString((long) value) : "" + value;
            throw new BadInputException(option + " must be greater than 0, not " + shown);
        }
    }

    private void checkOut() {
        try {
            Files.createDirectories(out);
            Files.delete(Files.createTempFile(out, ".tp", ".check"));
        } catch (IOException e) {
            throw new BadInputException(
                    "--out "
                            + out
                            + " cannot be written ("
                            + e.getClass().getSimpleName()
                            + ": "
                            + e.getMessage()
                            + "): choose a folder with write permission",
                    e);
        }
    }

    /** Returns the learning rate that was asked for, or one that suits the optimizer. */
    float learningRate() {
        if (learningRate != null) {
            return learningRate;
        }
        float sgd = 12f * batch / 256; // a word's own gradient is divided by the batch
        switch (optimizer) {
            case SGD:
                return sgd;
            case MOMENTUM:
                return 0.1f * sgd;
            case ADAGRAD:
                return 0.3f;
            default:
                return 0.01f;
        }
    }

    /** Returns the limit of time in minutes; a run with a number of steps has none of its own. */
    double minutes() {
        if (minutes != null) {
            return minutes;
        }
        return steps == null ? DEFAULT_MINUTES : Double.POSITIVE_INFINITY;
    }

    /** Returns the limit of passes. */
    int epochs() {
        return epochs == null ? MOST_EPOCHS : epochs;
    }

    /** Returns the limit of steps. */
    int steps() {
        return steps == null ? Integer.MAX_VALUE : steps;
    }
}
