package io.djltp.examples.chaos;

import ai.djl.util.Utils;

import io.djltp.examples.chaos.KilledTraining.Outcome;
import io.djltp.rank.ParallelMode;

import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.ToIntFunction;

/**
 * Kills trainings that are saved every few steps at random moments, resumes them, and compares
 * their weights in the end with those of trainings that were not killed.
 */
public final class KillAndResume {

    private static final int EPOCHS = 40; // of 7 steps
    private static final int MOST_STEPS = 16;
    private static final int MOST_OF_ONE = 20; // kills
    private static final int FEW_CLASSES = 40;

    /** Files of more than 4 MiB, the smallest that are written past the page cache. */
    private static final int MANY_CLASSES = 120_000;

    private final PrintStream out;
    private final int epochs;
    private final int mostSteps;

    KillAndResume(PrintStream out, int epochs, int mostSteps) {
        this.out = out;
        this.epochs = epochs;
        this.mostSteps = mostSteps;
    }

    /**
     * Runs {@code examples/kill-and-resume.sh}.
     *
     * @param args the number of kills (200), how many trainings run at once (2), and the seed (the
     *     time)
     * @throws Exception if a training does not go on as it should
     */
    public static void main(String[] args) throws Exception {
        int kills = args.length > 0 ? Integer.parseInt(args[0]) : 200;
        int atOnce = args.length > 1 ? Integer.parseInt(args[1]) : 2;
        long seed = args.length > 2 ? Long.parseLong(args[2]) : System.currentTimeMillis();
        System.out.printf("%d kills, seed %d%n", kills, seed);
        boolean good = new KillAndResume(System.out, EPOCHS, MOST_STEPS).run(kills, atOnce, seed);
        System.exit(good ? 0 : 1);
    }

    /**
     * Kills trainings: of every three, one of two processes, and two of a process with 1 to 3
     * ranks; every other one with large files.
     *
     * @return whether all had the weights that they should have
     */
    boolean run(int kills, int atOnce, long seed) throws Exception {
        Path folder = Files.createTempDirectory("kill-and-resume");
        SplittableRandom random = new SplittableRandom(seed);
        ExecutorService workers = Executors.newFixedThreadPool(atOnce);
        List<Outcome> outcomes = new ArrayList<>();
        try {
            for (int left = kills; left > 0; left = kills - sum(outcomes, Outcome::kills)) {
                List<Callable<Outcome>> some = new ArrayList<>();
                for (int i = 0; i < atOnce && i * MOST_OF_ONE < left; i++) {
                    int most = Math.min(MOST_OF_ONE, left - i * MOST_OF_ONE);
                    int number = outcomes.size() + i;
                    SplittableRandom own = random.split();
                    Path path = Files.createDirectory(folder.resolve("" + number));
                    some.add(() -> train(number, most, path, own));
                }
                for (Future<Outcome> each : workers.invokeAll(some)) {
                    outcomes.add(each.get()); // it may have been over before all of its kills
                }
            }
        } finally {
            workers.shutdownNow();
            Utils.deleteQuietly(folder);
        }
        boolean equal = outcomes.stream().allMatch(Outcome::equal);
        out.printf(
                "%d kills, %d of them while a checkpoint was written; %d runs trained on from a"
                        + " checkpoint before the next kill, others were killed before that or"
                        + " began before there was one; weights in the end: %s%n",
                sum(outcomes, Outcome::kills),
                sum(outcomes, Outcome::tornWrites),
                sum(outcomes, Outcome::resumes),
                equal ? "equal in every bit" : "DIFFERENT");
        return equal;
    }

    private static int sum(List<Outcome> outcomes, ToIntFunction<Outcome> figure) {
        return outcomes.stream().mapToInt(figure).sum();
    }

    private Outcome train(int number, int most, Path path, SplittableRandom random)
            throws Exception {
        ParallelMode mode = ParallelMode.values()[number % ParallelMode.values().length];
        int processes = number % 3 == 1 ? 2 : 1;
        int ranks = processes > 1 ? 1 : 1 + number % 3;
        int classes = number % 2 == 1 ? MANY_CLASSES : FEW_CLASSES;
        KilledTraining training =
                new KilledTraining(
                        mode, processes, ranks, epochs, mostSteps, classes, path, random);
        Outcome outcome = training.run(most);
        out.printf(
                "training %d, %s on %d process(es) of %d rank(s), %d classes: %s%n",
                number, mode, processes, ranks, classes, outcome);
        return outcome;
    }
}
