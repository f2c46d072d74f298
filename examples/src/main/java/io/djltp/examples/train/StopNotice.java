package io.djltp.examples.train;

import java.util.function.IntSupplier;

/**
 * Says, when Ctrl-C or a signal ends the process before the model is saved, that nothing is saved.
 */
final class StopNotice {

    private final Thread hook;

    /**
     * Waits for the end.
     *
     * @param shown whether this process says anything
     * @param steps the number of steps that were done
     */
    StopNotice(boolean shown, IntSupplier steps) {
        hook = new Thread(() -> print(steps.getAsInt()), "tp-stop");
        if (shown) {
            Runtime.getRuntime().addShutdownHook(hook);
        }
    }

    private static void print(int steps) {
        System.err.printf(
                "%ntp: stopped after %d steps, before anything was saved. --minutes or --steps ends"
                        + " a run with a saved model, --checkpoint-minutes saves it on the way.%n",
                steps);
        System.err.flush();
    }

    /** From here on the end is an ordinary one. */
    void end() {
        try {
            Runtime.getRuntime().removeShutdownHook(hook);
        } catch (IllegalStateException e) {
            return; // the process is being stopped, and the word is being said
        }
    }
}
