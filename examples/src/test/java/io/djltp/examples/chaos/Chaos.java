package io.djltp.examples.chaos;

import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.SplittableRandom;

/**
 * Kills and freezes processes of jobs at random, and shows how the others end: each by itself, in
 * time, with one line that names what was lost.
 */
public final class Chaos {

    private static final int MAX_TRIES = 5;

    private final PrintStream out;
    private final List<KillRun> runs = new ArrayList<>();

    Chaos(PrintStream out) {
        this.out = out;
    }

    /**
     * Runs {@code examples/chaos.sh}.
     *
     * @param args the number of kills (100) and the seed (the time)
     * @throws IOException if a process cannot be started
     * @throws InterruptedException never
     */
    public static void main(String[] args) throws IOException, InterruptedException {
        int kills = args.length > 0 ? Integer.parseInt(args[0]) : 100;
        long seed = args.length > 1 ? Long.parseLong(args[1]) : System.currentTimeMillis();
        Chaos chaos = new Chaos(System.out);
        boolean good = chaos.run(kills, seed);
        chaos.printSummary();
        System.exit(good ? 0 : 1);
    }

    /**
     * Kills processes of one job after another.
     *
     * @param kills the number of jobs
     * @param seed the seed
     * @return whether all survivors ended as they should
     */
    boolean run(int kills, long seed) throws IOException, InterruptedException {
        out.printf("%d kills, seed %d%n", kills, seed);
        SplittableRandom random = new SplittableRandom(seed);
        for (int i = 1; i <= kills; i++) {
            KillRun run = runOne(KillPlan.random(i, random));
            runs.add(run);
            out.printf(
                    Locale.ROOT,
                    "%s: %s, %d had finished, errors after %.2f s%n",
                    run.plan,
                    run.isClean() ? "clean" : "FAILED",
                    run.finished,
                    run.seconds);
            run.problems.forEach(out::println);
        }
        return runs.stream().allMatch(KillRun::isClean);
    }

    private KillRun runOne(KillPlan plan) throws IOException, InterruptedException {
        KillRun run = KillRun.of(plan);
        for (int i = 1; i < MAX_TRIES && run.spoiled; i++) {
            out.println(plan + ": did not happen as planned; again");
            run.problems.forEach(out::println);
            run = KillRun.of(plan);
        }
        return run;
    }

    /** Prints what became of those that were killed, and of those that were frozen. */
    private void printSummary() {
        for (boolean frozen : new boolean[] {false, true}) {
            List<KillRun> some = runs.stream().filter(it -> it.plan.frozen() == frozen).toList();
            out.printf(
                    Locale.ROOT,
                    "%d %s, %d of them clean; the last error came after %.2f s%n",
                    some.size(),
                    frozen ? "frozen" : "killed",
                    some.stream().filter(KillRun::isClean).count(),
                    some.stream().mapToDouble(it -> it.seconds).max().orElse(0));
        }
    }
}
