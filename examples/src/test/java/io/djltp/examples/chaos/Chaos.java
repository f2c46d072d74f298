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
    private final List<KillRun.Outcome> outcomes = new ArrayList<>();
    private int spoiled;

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
            KillRun.Outcome outcome = runOne(KillPlan.random(i, random));
            outcomes.add(outcome);
            print(outcome);
        }
        return outcomes.stream().allMatch(KillRun.Outcome::isClean);
    }

    private KillRun.Outcome runOne(KillPlan plan) throws IOException, InterruptedException {
        KillRun.Outcome outcome = KillRun.of(plan);
        for (int i = 1; i < MAX_TRIES && outcome.spoiled(); i++) {
            out.println(plan + ": did not happen as planned; again");
            outcome.problems().forEach(out::println);
            spoiled++;
            outcome = KillRun.of(plan);
        }
        return outcome;
    }

    private void print(KillRun.Outcome outcome) {
        String text = outcome.isClean() ? "clean" : "FAILED";
        if (outcome.finished() > 0) {
            text += ", " + outcome.finished() + " had finished";
        }
        if (!outcome.seconds().isEmpty()) {
            text += String.format(Locale.ROOT, ", last error after %.2f s", max(outcome.seconds()));
        }
        out.println(outcome.plan() + ": " + text);
        outcome.problems().forEach(out::println);
    }

    /** Prints the table of all that was done. */
    void printSummary() {
        out.printf(
                Locale.ROOT,
                "%n%-10s %-7s %6s %6s %9s %9s %9s%n",
                "when",
                "what",
                "kills",
                "clean",
                "median s",
                "max s",
                "finished");
        for (KillPlan.Phase phase : KillPlan.Phase.values()) {
            printRow(phase, false);
            printRow(phase, true);
        }
        printRow(null, false);
        printRow(null, true);
        out.printf(
                "jobs that were started again, because it did not happen as planned: %d%n",
                spoiled);
        long failed = outcomes.stream().filter(o -> !o.isClean()).count();
        out.printf("%d of %d kills clean%n", outcomes.size() - failed, outcomes.size());
    }

    private void printRow(KillPlan.Phase phase, boolean frozen) {
        List<KillRun.Outcome> some =
                outcomes.stream()
                        .filter(o -> phase == null || o.plan().phase() == phase)
                        .filter(o -> o.plan().frozen() == frozen)
                        .toList();
        if (some.isEmpty()) {
            return;
        }
        List<Double> seconds = some.stream().flatMap(o -> o.seconds().stream()).sorted().toList();
        out.printf(
                Locale.ROOT,
                "%-10s %-7s %6d %6d %9s %9s %9d%n",
                phase == null ? "all" : phase.name().toLowerCase(Locale.ROOT),
                frozen ? "frozen" : "killed",
                some.size(),
                some.stream().filter(KillRun.Outcome::isClean).count(),
                seconds.isEmpty() ? "-" : format(seconds.get(seconds.size() / 2)),
                seconds.isEmpty() ? "-" : format(max(seconds)),
                some.stream().mapToInt(KillRun.Outcome::finished).sum());
    }

    private static String format(double value) {
        return String.format(Locale.ROOT, "%.2f", value);
    }

    private static double max(List<Double> values) {
        return values.stream().mapToDouble(Double::doubleValue).max().orElse(Double.NaN);
    }
}
