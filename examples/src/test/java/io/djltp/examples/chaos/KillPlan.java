package io.djltp.examples.chaos;

import io.djltp.rank.ParallelMode;

import java.util.Locale;
import java.util.random.RandomGenerator;

/**
 * What is done to a job: which of its processes is killed or frozen, and when.
 *
 * @param number the number of the plan
 * @param processes the number of processes
 * @param ranks the number of ranks of each
 * @param mode the mode
 * @param victim the process that is killed or frozen
 * @param frozen whether it is frozen, and continued later
 * @param phase how far it has come then
 * @param delayMillis for how long it has been there
 */
record KillPlan(
        int number,
        int processes,
        int ranks,
        ParallelMode mode,
        int victim,
        boolean frozen,
        Phase phase,
        int delayMillis) {

    private static final int ENDLESS = 1_000_000_000;

    /** How far a process has come. */
    enum Phase {
        LAUNCH(20, 1200),
        START(10, 150),
        JOINED(15, 1000),
        CONNECTED(15, 100),
        STEPS(30, 1000),
        CLOSING(10, 15),
        END(0, 0);

        private final int weight;
        private final int maxMillis;

        Phase(int weight, int maxMillis) {
            this.weight = weight;
            this.maxMillis = maxMillis;
        }

        /** Returns the line by which a process says that it has come here. */
        String line() {
            return "phase " + name().toLowerCase(Locale.ROOT);
        }

        private static Phase random(RandomGenerator random) {
            int left = random.nextInt(100); // the sum of the weights
            for (Phase phase : values()) {
                left -= phase.weight;
                if (left < 0) {
                    return phase;
                }
            }
            throw new IllegalStateException("the weights are less than 100");
        }
    }

    static KillPlan random(int number, RandomGenerator random) {
        int processes = random.nextInt(2, 5);
        Phase phase = Phase.random(random);
        return new KillPlan(
                number,
                processes,
                random.nextInt(1, 3),
                ParallelMode.values()[random.nextInt(ParallelMode.values().length)],
                random.nextInt(processes),
                random.nextBoolean(),
                phase,
                random.nextInt(phase.maxMillis));
    }

    /** Returns how many steps are trained: without end, if the end is not what is tried. */
    int steps() {
        return phase == Phase.CLOSING ? 20 : ENDLESS;
    }

    /**
     * Returns whether all processes have come together before: on a busy machine that takes long.
     */
    boolean isOfAWholeJob() {
        return phase.compareTo(Phase.JOINED) >= 0;
    }

    /** Returns whether a text names the victim, or one of its ranks. */
    boolean isNamedIn(String text) {
        String names = "\\b[Pp]rocess " + victim + "\\b";
        for (int i = 0; i < ranks; i++) {
            names += "|\\brank " + (victim * ranks + i) + "\\b";
        }
        return java.util.regex.Pattern.compile(names).matcher(text).find();
    }
}
