package io.djltp.examples.train;

import static io.djltp.examples.train.DeviceOptions.positive;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.CheckpointListener;
import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.job.Job;
import io.djltp.launch.Launcher;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.report.TrainingReport;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.BooleanSupplier;
import java.util.function.Predicate;

/** The options that all commands have that train. */
public abstract class JobOptions {
    private static final String CHECKPOINTS = "checkpoints"; // in the folder of --out

    /** Those that only process 0 uses, and --tp, which the job compares. */
    private static final Set<String> OF_ONE_PROCESS =
            Set.of(
                    ("--tp --out --overwrite --json --report --tensorboard --keep --export-split"
                                    + " --temperature --characters --save --help --version")
                            .split(" "));

    /** Where the ranks compute. */
    @Mixin public final DeviceOptions where = new DeviceOptions();

    /** The file for the figures of the run, or {@code null}. */
    @Option(names = "--json", description = "File for the figures and the losses of the run.")
    public @Nullable Path json;

    @Option(
            names = "--tp",
            description =
                    "Number of ranks of all processes (2, or 1 for train --data, or one for each"
                            + " process that a launcher has started, or those of the --mesh).")
    private @Nullable Integer tp;

    @Option(
            names = "--mesh",
            description =
                    "Sizes of the axes data and tensor, such as 2x3: the batch is cut over 2 groups"
                            + " of ranks, and layers and heads over the 3 ranks of each.")
    private @Nullable String meshText;

    @Option(
            names = "--shard-optimizer",
            description =
                    "Ranks that sum a gradient share out what the optimizer keeps of the parameter:"
                            + " along the axis data, and in mixed mode.")
    private boolean shardOptimizer;

    @Option(
            names = "--checkpoint-steps",
            description =
                    "Save the training after every so many steps, to --out/"
                            + CHECKPOINTS
                            + ". SIGTERM and Ctrl-C then end it with a checkpoint.")
    private @Nullable Long checkpointSteps;

    @Option(names = "--checkpoint-minutes", description = "The same after every so many minutes.")
    private @Nullable Double checkpointMinutes;

    @Option(
            names = "--keep",
            defaultValue = "3",
            description = "How many checkpoints are kept (${DEFAULT-VALUE}).")
    private int keep;

    @Option(
            names = "--resume",
            description =
                    "Go on from the newest checkpoint, or begin if there is none. The ranks may be"
                            + " others than before.")
    private boolean resume;

    @Option(
            names = "--resume-from",
            description =
                    "Go on from the checkpoint of this step, such as when a newer one is damaged."
                            + " Newer ones are put aside.")
    private @Nullable Long resumeFrom;

    @Option(
            names = "--report",
            description =
                    "A page of HTML with curves, memory, where the time goes and how the"
                            + " parameters are cut; written anew every 5 seconds.")
    private @Nullable Path page;

    @Option(
            names = "--tensorboard",
            description = "A folder for a file of events that TensorBoard shows.")
    private @Nullable Path events;

    private @Nullable DeviceMesh mesh; // once the options are checked

    /** Creates the options, which are set by the command line. */
    protected JobOptions() {}

    /** Checks everything that can be checked before anything is read or written. */
    protected abstract void check();

    /** {@return the folder of the run, or {@code null}} */
    protected abstract @Nullable Path out();

    /**
     * Returns the names of the options that make the training what it is, wherever it is done.
     *
     * @return the names
     */
    protected abstract Set<String> trainingOptions();

    /**
     * Returns the number of ranks where neither an option nor a launcher says it.
     *
     * @return the number of ranks
     */
    protected int ranksAlone() {
        return DeviceOptions.DEFAULT_RANKS;
    }

    /** Checks that the folder of the run can be written, in the process that writes it. */
    protected void checkOut() {
        // checkpoints are checked as they are opened
    }

    /**
     * Refuses a folder for a model that has one already, or cannot be made.
     *
     * @param save the folder, or {@code null}
     */
    protected static void checkSave(@Nullable Path save) {
        if (save == null) {
            return;
        }
        for (String name :
                List.of(
                        "model.safetensors",
                        "config.json",
                        "tokenizer.json",
                        "adapter_config.json")) {
            if (Files.exists(save.resolve(name))) {
                throw new BadInputException(
                        "--save %s has a model, its %s: choose another folder", save, name);
            }
        }
        if (Files.exists(save) && !Files.isDirectory(save)) {
            throw new BadInputException(
                    "--save %s is a file: name a folder, which may be new", save);
        }
        Path there = save.toAbsolutePath();
        while (!Files.exists(there) && there.getParent() != null) {
            there = there.getParent();
        }
        if (!Files.isDirectory(there) || !Files.isWritable(there)) {
            throw new BadInputException(
                    "--save %s cannot be made in %s: name another folder", save, there);
        }
    }

    /**
     * Checks the options of all trainings.
     *
     * @param mode how the ranks share the work if there is no {@code --mesh}
     */
    protected final void check(ParallelMode mode) {
        where.check();
        if (meshText == null) {
            int ranks = DeviceOptions.ranks(tp, ranksAlone());
            positive("--tp", ranks);
            mesh = DeviceMesh.of(mode, ranks);
        } else {
            mesh = DeviceOptions.mesh(meshText, tp);
        }
        DeviceOptions.checkShared(
                ranks(),
                meshText == null
                        ? "--tp " + ranks() + " ranks"
                        : "The --mesh " + meshText + " of " + ranks() + " ranks");
        positive("--checkpoint-steps", checkpointSteps);
        positive("--checkpoint-minutes", checkpointMinutes);
        positive("--keep", keep);
        positive("--resume-from", resumeFrom);
        if (isSaved() && out() == null) {
            throw new BadInputException(
                    "--checkpoint-steps, --checkpoint-minutes, --resume and --resume-from need"
                            + " --out, the folder of the run");
        }
    }

    /**
     * Refuses a batch that leaves ranks without a row.
     *
     * @param batch the rows of a batch
     * @param modeName the mode, or {@code null} if there is a {@code --mesh}
     */
    protected final void checkBatch(int batch, @Nullable String modeName) {
        int sharing = ranks(DeviceMesh.DATA);
        if (batch < sharing) {
            boolean ofMode = meshText == null;
            throw new BadInputException(
                    "--batch %d is smaller than the %d %s that share it %s: use --batch %d or more,"
                            + " or fewer ranks (%s)",
                    batch,
                    sharing,
                    ofMode ? "ranks" : "groups of ranks",
                    ofMode ? "in " + modeName + " mode" : "on " + describeRanks(),
                    sharing,
                    ofMode ? "--tp" : "--mesh");
        }
    }

    /**
     * Checks the files that are written, and those that would be in the way. It is for when the
     * processes have met: what one of them alone finds, the others are told.
     */
    final void checkFiles() {
        if (Launcher.process(System.getenv()) == 0) { // the others write no model
            checkCheckpoints();
            checkOut();
        }
        JsonFile.check("--json", json);
        JsonFile.check("--report", page);
        if (events != null && Files.exists(events) && !Files.isDirectory(events)) {
            throw new BadInputException(
                    "--tensorboard " + events + " is a file: name a folder, which may be new");
        }
    }

    private void checkCheckpoints() {
        List<Long> before = saved();
        // what a run before has left is neither mixed with another nor written over
        if (!isResumed() && !before.isEmpty()) {
            throw new BadInputException(
                    "%s has checkpoints of a run, the newest of step %d: --resume goes on from it;"
                            + " or choose another --out",
                    checkpoints(), before.get(before.size() - 1));
        }
        if (resumeFrom != null && !before.contains(resumeFrom)) {
            throw new BadInputException(
                    "--resume-from %d: %s has %s",
                    resumeFrom,
                    checkpoints(),
                    before.isEmpty() ? "no checkpoint" : "those of steps " + before);
        }
    }

    /** Returns the folder of the checkpoints. */
    final Path checkpoints() {
        Path out = out();
        if (out == null) {
            throw new IllegalStateException("Without --out there are no checkpoints");
        }
        return out.resolve(CHECKPOINTS);
    }

    /** Returns the steps of the checkpoints that there are. */
    private List<Long> saved() {
        try {
            return isSaved() && Files.isDirectory(checkpoints())
                    ? List.copyOf(Checkpoint.list(checkpoints()).keySet())
                    : List.of();
        } catch (IOException e) {
            throw new BadInputException(checkpoints() + " cannot be read: " + e.getMessage(), e);
        }
    }

    /** {@return what can be gone on from if the run ends now, in words, or {@code null}} */
    final @Nullable String describeNewest() {
        List<Long> saved = saved();
        return saved.isEmpty()
                ? null
                : "%s has the checkpoint of step %d: --resume goes on from it"
                        .formatted(checkpoints(), saved.get(saved.size() - 1));
    }

    private boolean isSaved() {
        return checkpointSteps != null || checkpointMinutes != null || isResumed();
    }

    /** Returns whether the training goes on where a checkpoint is. */
    final boolean isResumed() {
        return resume || resumeFrom != null;
    }

    /** Returns the options that all processes must have alike. */
    final Map<String, String> alike(CommandSpec command) {
        return values(command, name -> !OF_ONE_PROCESS.contains(name));
    }

    private static Map<String, String> values(CommandSpec command, Predicate<String> names) {
        Map<String, String> values = new LinkedHashMap<>();
        command.options().stream()
                .filter(option -> names.test(option.longestName()))
                .forEach(option -> values.put(option.longestName(), text(option.getValue())));
        return values;
    }

    private static String text(@Nullable Object value) {
        if (value instanceof Object[] all) {
            return Arrays.toString(all);
        }
        return value instanceof Enum<?> constant
                ? constant.name().toLowerCase(Locale.ROOT)
                : value == null ? "not set" : value.toString();
    }

    /**
     * Returns what saves the training and resumes it.
     *
     * @param command the command
     * @param report what the run has to report so far, which goes on too
     * @param over says when the last step is done, of which there is a checkpoint
     * @return the listener, or {@code null} if the training is not saved
     */
    public final @Nullable CheckpointListener listener(
            CommandSpec command, RunReport report, BooleanSupplier over) {
        if (!isSaved()) {
            return null;
        }
        CheckpointListener.Builder builder =
                CheckpointListener.builder()
                        .setFolder(checkpoints())
                        .optKeep(keep)
                        .optSignals("TERM", "INT")
                        .optOptions(values(command, trainingOptions()::contains))
                        .optState("report", report)
                        .optWhen(over);
        Optional.ofNullable(checkpointSteps).ifPresent(builder::optEverySteps);
        Optional.ofNullable(resumeFrom).ifPresent(builder::optResumeFrom);
        Optional.ofNullable(checkpointMinutes).ifPresent(builder::optEveryMinutes);
        return builder.build();
    }

    /**
     * Begins the page and the file of events, if they were asked for.
     *
     * @param title the title of the page
     * @return the report, to be built
     */
    public final TrainingReport.Builder report(String title) {
        return TrainingReport.builder().optPage(page).optTensorBoard(events).optTitle(title);
    }

    /**
     * Returns the number of ranks of all processes.
     *
     * @return the number of ranks
     */
    public final int ranks() {
        return mesh().getRanks();
    }

    /**
     * Returns the number of ranks along an axis of the mesh.
     *
     * @param axis the axis
     * @return the number of ranks, 1 if nothing is cut over them
     */
    public final int ranks(String axis) {
        return mesh().isCut(axis) ? mesh().getSize(axis) : 1;
    }

    /**
     * Checks that each rank along the axis tensor gets an attention head.
     *
     * @param heads the heads of the model
     * @throws BadInputException if there are more ranks than heads
     */
    public final void checkHeads(int heads) {
        int tensor = ranks(DeviceMesh.TENSOR);
        if (tensor > heads) {
            throw new BadInputException(
                    "%s leaves ranks without a head: %d ranks share the %d attention heads, use"
                            + " %3$d ranks or fewer along the axis tensor",
                    describeRanks(), tensor, heads);
        }
    }

    /** Returns how many times the head is there, over all ranks. */
    final int replicas() {
        return mesh().isOverlaid() ? 1 : ranks(DeviceMesh.DATA);
    }

    /**
     * Returns the option that says how the work is shared.
     *
     * @return the option and its value
     */
    public String describeRanks() {
        return meshText == null ? "--tp " + ranks() : "--mesh " + meshText;
    }

    /**
     * Returns the mesh as it was given.
     *
     * @return the text, or {@code null} without {@code --mesh}
     */
    public final @Nullable String meshName() {
        return meshText;
    }

    /**
     * Begins the configuration of the ranks.
     *
     * @param job the job, or {@code null}
     * @return the configuration, to be built
     */
    public ParallelConfig.Builder config(@Nullable Job job) {
        return where.config(job, mesh()).optShardOptimizer(shardOptimizer);
    }

    private DeviceMesh mesh() {
        if (mesh == null) {
            throw new IllegalStateException("The mesh follows from the options: check comes first");
        }
        return mesh;
    }
}
