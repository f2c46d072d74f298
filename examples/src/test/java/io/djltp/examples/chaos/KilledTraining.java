package io.djltp.examples.chaos;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.djltp.rank.ParallelMode;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/**
 * A training that is killed again and again (SIGKILL), and started again each time, until it is
 * over: each time it has to go on from a good checkpoint, not older than the newest before.
 */
final class KilledTraining {

    private static final int START_SECONDS = 240; // of several processes on a busy machine
    private static final int END_SECONDS = 60; // of those that have lost another one
    private static final double AT_START = 0.15; // the share of kills before training begins

    private final ParallelMode mode;
    private final int processes;
    private final int ranks; // of each
    private final int epochs;
    private final int mostSteps; // of a run before a kill
    private final int classes;
    private final Path folder;
    private final SplittableRandom random;
    private final List<Process> running = new ArrayList<>();
    private long startMillis = 1000; // how long the last start took
    private long newest; // the step that the last run began after
    private int kills;
    private int resumes; // of them from a checkpoint
    private int tornWrites;

    KilledTraining(
            ParallelMode mode,
            int processes,
            int ranks,
            int epochs,
            int mostSteps,
            int classes,
            Path folder,
            SplittableRandom random) {
        this.mode = mode;
        this.processes = processes;
        this.ranks = ranks;
        this.epochs = epochs;
        this.mostSteps = mostSteps;
        this.classes = classes;
        this.folder = folder;
        this.random = random;
    }

    /**
     * What became of it.
     *
     * @param kills how often it was killed
     * @param resumes how often it went on from a checkpoint
     * @param tornWrites how often a kill has left a checkpoint half written
     * @param equal whether its weights are those of the training that was not killed, in every bit
     */
    record Outcome(int kills, int resumes, int tornWrites, boolean equal) {}

    /**
     * Kills the training so many times, or until it is over, and lets it end.
     *
     * @throws IllegalStateException if a run does not go on as it should
     */
    Outcome run(int mostKills) throws Exception {
        String expected =
                SavedToyJob.uninterrupted(
                        mode, processes * ranks, epochs, folder.resolve("uninterrupted"), classes);
        String result = null;
        while (result == null) {
            result = live(kills < mostKills);
        }
        return new Outcome(kills, resumes, tornWrites, result.equals(expected));
    }

    /** Starts the training, and kills it or waits for its end; returns what it has printed then. */
    private String live(boolean kill) throws Exception {
        long begin = System.nanoTime();
        start();
        if (kill && random.nextDouble() < AT_START) {
            Thread.sleep(random.nextLong(startMillis));
        } else {
            awaitBegin();
            startMillis = Math.max(1, (System.nanoTime() - begin) / 1_000_000);
            if (kill) {
                awaitSteps(random.nextInt(mostSteps));
            }
        }
        if (!kill || log(0).contains(SavedToyJob.RESULT)) {
            return end(); // it may be over before it could be killed
        }
        kill();
        return null;
    }

    private void start() throws IOException {
        List<Path> logs =
                IntStream.range(0, processes).mapToObj(i -> folder.resolve(i + ".log")).toList();
        List<String> arguments =
                List.of(
                        mode.name(),
                        "" + processes * ranks,
                        "" + epochs,
                        checkpoints().toString(),
                        "" + classes);
        running.clear();
        running.addAll(ForkedJob.start(SavedToyJob.class, arguments, logs));
    }

    private Path checkpoints() {
        return folder.resolve("checkpoints");
    }

    private String log(int process) throws IOException {
        return Files.readString(folder.resolve(process + ".log"), UTF_8);
    }

    /** Waits until training begins; it must not begin earlier than the run before. */
    private void awaitBegin() throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(START_SECONDS);
        for (int i = 0; i < processes; i++) {
            while (!log(i).contains(SavedToyJob.BEGIN)) {
                if (!running.get(i).isAlive() || System.nanoTime() > deadline) {
                    throw failed("process " + i + " does not begin");
                }
                Thread.sleep(2);
            }
        }
        String text = log(0).substring(log(0).indexOf(SavedToyJob.BEGIN));
        long step = Long.parseLong(text.substring(SavedToyJob.BEGIN.length()).split("\\s")[0]);
        if (step < newest) {
            throw failed("begins after step " + step + ", and the run before after " + newest);
        }
        newest = step;
        resumes += step > 0 ? 1 : 0;
    }

    /** Waits for some steps, or the end, and then for a moment of about one more. */
    private void awaitSteps(int steps) throws Exception {
        long begin = System.nanoTime();
        while (running.get(0).isAlive()
                && log(0).lines().filter(SavedToyJob.STEP::equals).count() < steps) {
            Thread.sleep(1);
        }
        long most = Math.max(4_000_000, (System.nanoTime() - begin) / Math.max(1, steps));
        running.get(0).waitFor(random.nextLong(most), TimeUnit.NANOSECONDS);
    }

    /** Kills all processes, or one, after which the others have to end. */
    private void kill() throws Exception {
        int victim = random.nextInt(processes);
        boolean one = processes > 1 && random.nextBoolean();
        for (int i = 0; i < processes; i++) {
            if (!one || i == victim) {
                running.get(i).destroyForcibly();
            }
        }
        kills++;
        for (Process process : running) {
            if (!process.waitFor(END_SECONDS, TimeUnit.SECONDS)) {
                throw failed("a process that has lost another one does not end");
            }
        }
        if (Files.isDirectory(checkpoints())) {
            try (var files = Files.list(checkpoints())) {
                boolean torn =
                        files.anyMatch(f -> f.getFileName().toString().startsWith(".writing"));
                tornWrites += torn ? 1 : 0;
            }
        }
    }

    private String end() throws Exception {
        for (Process process : running) {
            if (!process.waitFor(START_SECONDS, TimeUnit.SECONDS) || process.exitValue() != 0) {
                throw failed("it does not end as it should");
            }
        }
        return log(0).lines()
                .filter(line -> line.startsWith(SavedToyJob.RESULT))
                .map(line -> line.substring(SavedToyJob.RESULT.length()))
                .findFirst()
                .orElseThrow();
    }

    private IllegalStateException failed(String what) throws IOException {
        StringBuilder text = new StringBuilder("After " + kills + " kills: " + what);
        for (int i = 0; i < processes; i++) {
            running.get(i).destroyForcibly();
            text.append("\nprocess ").append(i).append(": ").append(log(i));
        }
        return new IllegalStateException(text.toString());
    }
}
