package io.djltp.examples.chaos;

import ai.djl.util.Utils;

import io.djltp.layout.ParallelMode;

import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

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
    private Path folder;
    private SplittableRandom random;
    private int left; // of the kills
    private int trainings;

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
        folder = Files.createTempDirectory("kill-and-resume");
        left = kills;
        random = new SplittableRandom(seed);
        ExecutorService workers = Executors.newFixedThreadPool(atOnce);
        try {
            List<Future<List<KilledTraining.Outcome>>> futures = new ArrayList<>();
            for (int i = 0; i < atOnce; i++) {
                futures.add(workers.submit(this::work));
            }
            List<KilledTraining.Outcome> outcomes = new ArrayList<>();
            for (Future<List<KilledTraining.Outcome>> future : futures) {
                outcomes.addAll(future.get());
            }
            return sum(outcomes);
        } finally {
            workers.shutdownNow();
            Utils.deleteQuietly(folder);
        }
    }

    /** Kills one training after another, until there were enough kills. */
    private List<KilledTraining.Outcome> work() throws Exception {
        List<KilledTraining.Outcome> outcomes = new ArrayList<>();
        for (int most = take(0); most > 0; ) {
            KilledTraining.Outcome outcome = train(most);
            outcomes.add(outcome);
            most = take(most - outcome.kills()); // it may have been over before
        }
        return outcomes;
    }

    private synchronized int take(int givenBack) {
        left += givenBack;
        int taken = Math.min(MOST_OF_ONE, left);
        left -= taken;
        return taken;
    }

    private KilledTraining.Outcome train(int most) throws Exception {
        int number;
        SplittableRandom own;
        synchronized (this) {
            number = trainings++;
            own = random.split();
        }
        ParallelMode mode = ParallelMode.values()[number % ParallelMode.values().length];
        int processes = number % 3 == 1 ? 2 : 1;
        int ranks = processes > 1 ? 1 : 1 + number % 3;
        int classes = number % 2 == 1 ? MANY_CLASSES : FEW_CLASSES;
        Path path = Files.createDirectory(folder.resolve("" + number));
        KilledTraining training =
                new KilledTraining(mode, processes, ranks, epochs, mostSteps, classes, path, own);
        KilledTraining.Outcome outcome = training.run(most);
        out.printf(
                "training %d, %s on %d process(es) of %d rank(s), %d classes: %s%n",
                number, mode, processes, ranks, classes, outcome);
        return outcome;
    }

    private boolean sum(List<KilledTraining.Outcome> outcomes) {
        int kills = outcomes.stream().mapToInt(KilledTraining.Outcome::kills).sum();
        int resumes = outcomes.stream().mapToInt(KilledTraining.Outcome::resumes).sum();
        int torn = outcomes.stream().mapToInt(KilledTraining.Outcome::tornWrites).sum();
        boolean equal = outcomes.stream().allMatch(KilledTraining.Outcome::equal);
        out.printf(
                "%d kills, %d of them while a checkpoint was written; %d runs trained on from a"
                        + " checkpoint before the next kill, others were killed before that or"
                        + " began before there was one; weights in the end: %s%n",
                kills, torn, resumes, equal ? "equal in every bit" : "DIFFERENT");
        return equal;
    }
}
