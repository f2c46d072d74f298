package io.djltp.examples.chaos;

import io.djltp.layout.ParallelMode;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
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

    private final PrintStream out;
    private final int epochs;
    private final int mostMillis;

    KillAndResume(PrintStream out, int epochs, int mostMillis) {
        this.out = out;
        this.epochs = epochs;
        this.mostMillis = mostMillis;
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
        boolean good = new KillAndResume(System.out, 100, 400).run(kills, atOnce, seed);
        System.exit(good ? 0 : 1);
    }

    /**
     * Kills trainings: of every five, one of two processes, and four of a process with 1 to 3
     * ranks.
     *
     * @return whether all had the weights that they should have
     */
    boolean run(int kills, int atOnce, long seed) throws Exception {
        Path folder = Files.createTempDirectory("kill-and-resume");
        ExecutorService workers = Executors.newFixedThreadPool(atOnce);
        try {
            SplittableRandom random = new SplittableRandom(seed);
            List<Future<KilledTraining.Outcome>> futures = new ArrayList<>();
            int each = Math.max(1, kills / 10);
            for (int number = 0; number * each < kills; number++) {
                int most = Math.min(each, kills - number * each);
                int processes = number % 3 == 1 ? 2 : 1;
                SplittableRandom own = random.split();
                Path path = Files.createDirectory(folder.resolve("" + number));
                int training = number;
                futures.add(workers.submit(() -> run(training, processes, most, path, own)));
            }
            return sum(futures);
        } finally {
            workers.shutdownNow();
            delete(folder);
        }
    }

    private KilledTraining.Outcome run(
            int number, int processes, int most, Path path, SplittableRandom random)
            throws Exception {
        ParallelMode mode = ParallelMode.values()[number % ParallelMode.values().length];
        int ranks = processes > 1 ? 1 : 1 + number % 3;
        KilledTraining training =
                new KilledTraining(mode, processes, ranks, epochs, mostMillis, path, random);
        KilledTraining.Outcome outcome = training.run(most);
        out.printf(
                "training %d, %s on %d process(es) of %d rank(s): %s%n",
                number, mode, processes, ranks, outcome);
        return outcome;
    }

    private boolean sum(List<Future<KilledTraining.Outcome>> futures) throws Exception {
        int kills = 0;
        int resumes = 0;
        int torn = 0;
        boolean equal = true;
        for (Future<KilledTraining.Outcome> future : futures) {
            KilledTraining.Outcome outcome = future.get();
            kills += outcome.kills();
            resumes += outcome.resumes();
            torn += outcome.tornWrites();
            equal &= outcome.equal();
        }
        out.printf(
                "%d kills, %d of them while a checkpoint was written; %d runs went on from a"
                        + " checkpoint, all others began before there was one; weights in the end:"
                        + " %s%n",
                kills, torn, resumes, equal ? "equal in every bit" : "DIFFERENT");
        return equal;
    }

    private static void delete(Path folder) throws IOException {
        try (var files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }
}
