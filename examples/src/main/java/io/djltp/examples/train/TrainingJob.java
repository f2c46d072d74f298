package io.djltp.examples.train;

import ai.djl.Model;
import ai.djl.training.DefaultTrainingConfig;

import io.djltp.checkpoint.CheckpointException;
import io.djltp.checkpoint.CheckpointListener;
import io.djltp.checkpoint.TrainingStoppedException;
import io.djltp.examples.BadInputException;
import io.djltp.examples.Tp;
import io.djltp.internal.job.AgreedSettings;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine;
import picocli.CommandLine.Model.CommandSpec;

import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * What the commands that train have in common: one process of a job prints, all have the same
 * options, a checkpoint is resumed, and a signal ends the training with one.
 */
public final class TrainingJob {

    private static final String RESUME = "--resume";
    private static final String RESUME_FROM = "--resume-from";

    private final @Nullable Job job;
    private final boolean first;
    private final PrintStream out;

    private TrainingJob(@Nullable Job job) {
        this.job = job;
        first = job == null || job.getProcess() == 0;
        out = out(job);
    }

    /**
     * Returns where a process of a job prints.
     *
     * @param job the job, or {@code null} if this process is alone
     * @return standard output, or nothing in other processes than the first
     */
    public static PrintStream out(@Nullable Job job) {
        boolean first = job == null || job.getProcess() == 0;
        return first ? System.out : new PrintStream(OutputStream.nullOutputStream());
    }

    /** What a command does in a job. */
    @FunctionalInterface
    public interface Work {

        /**
         * Trains.
         *
         * @param job the job
         * @throws Exception if it fails
         */
        void run(TrainingJob job) throws Exception;
    }

    /**
     * Checks the options of a command, and runs it in the job of a launcher, or alone.
     *
     * @param options the options
     * @param command the command
     * @param work what the command does
     * @return the exit status
     * @throws Exception if it fails
     */
    public static int run(JobOptions options, CommandSpec command, Work work) throws Exception {
        options.check();
        try (Job joined = options.where.join(options.ranks())) {
            TrainingJob job = new TrainingJob(joined);
            checkAlike(options.alike(command), joined);
            checkFiles(options, joined);
            options.where.checkDevices(joined, options.ranks());
            try {
                work.run(job);
            } catch (TrainingStoppedException e) {
                if (job.first) {
                    System.err.printf(
                            "%ntp: %s.%n%s",
                            e.getMessage(), howToGoOn(e.isSaved(), command.commandLine()));
                }
                return e.getExitStatus();
            }
        }
        return 0;
    }

    private static void checkFiles(JobOptions options, @Nullable Job joined) {
        String problem = null;
        try {
            options.checkFiles();
        } catch (BadInputException e) {
            problem = e.getMessage();
        }
        try {
            if (joined != null) {
                joined.check("The check of the files of the run", problem);
            }
        } catch (JobFailedException e) {
            throw problem == null ? e : new BadInputException(problem);
        }
        if (problem != null) {
            throw new BadInputException(problem);
        }
    }

    private static String howToGoOn(boolean saved, CommandLine command) {
        List<String> words = new ArrayList<>(List.of(Tp.NAME));
        words.addAll(command.getParseResult().originalArgs());
        int from = words.indexOf(RESUME_FROM);
        if (from >= 0) {
            words.subList(from, from + 2).clear(); // the next time from the newest
        }
        words.removeIf(word -> word.startsWith(RESUME_FROM + "="));
        if (!words.contains(RESUME)) {
            words.add(RESUME);
        }
        String line =
                words.stream()
                        .map(word -> word.contains(" ") ? "\"" + word + "\"" : word)
                        .collect(Collectors.joining(" "));
        return String.format(
                "Go on%s with: %s%n", saved ? "" : " from the checkpoint before", line);
    }

    /**
     * Returns the job that a launcher has started.
     *
     * @return the job, or {@code null} if this process is alone
     */
    public @Nullable Job get() {
        return job;
    }

    /**
     * Returns whether this is the process that prints and writes.
     *
     * @return whether its number is 0
     */
    public boolean isFirst() {
        return first;
    }

    /**
     * Returns where to print.
     *
     * @return standard output, or nothing in other processes than the first
     */
    public PrintStream out() {
        return out;
    }

    /**
     * Returns how many processes train, for people to read.
     *
     * @return the end of a sentence on ranks, empty if this process is alone
     */
    String describe() {
        return job == null ? "" : " of " + job.getProcesses() + " processes";
    }

    /**
     * Makes a trainer.
     *
     * @param model the model
     * @param config DJL's configuration
     * @param ranks the ranks
     * @return the trainer
     */
    public ParallelTrainer trainer(
            Model model, DefaultTrainingConfig config, ParallelConfig ranks) {
        return BadInputException.check("", () -> new ParallelTrainer(model, config, ranks));
    }

    /**
     * Opens the folder of the checkpoints, and goes on from the newest, if that was asked for and
     * there is one.
     *
     * @param checkpoints what saves the training, or {@code null}
     * @param options the options
     * @param trainer the initialized trainer
     * @throws IOException if the checkpoint cannot be read
     */
    public void resume(
            @Nullable CheckpointListener checkpoints, JobOptions options, ParallelTrainer trainer)
            throws IOException {
        if (checkpoints == null) {
            return;
        }
        try {
            boolean resumed = checkpoints.resume(trainer); // false in a folder that is new
            if (resumed) {
                out.printf(
                        "Going on after step %d, from %s%n",
                        checkpoints.getStep(), options.checkpoints());
            } else if (options.isResumed()) {
                out.printf("There is no checkpoint in %s yet%n", options.checkpoints());
            }
        } catch (IllegalArgumentException | CheckpointException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    /**
     * Compares the options of the processes of a job before they train together: with other seeds
     * or batches they would train nonsense, and with other numbers of epochs wait for each other.
     *
     * @param values those of this process by name, in one order in all
     * @param job the job, or {@code null} if this process is alone
     * @throws BadInputException on all processes, if two of them differ
     */
    public static void checkAlike(Map<String, String> values, @Nullable Job job) {
        try {
            AgreedSettings.check(
                    job, "options", values, "start all processes with the same options");
        } catch (IllegalArgumentException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }
}
