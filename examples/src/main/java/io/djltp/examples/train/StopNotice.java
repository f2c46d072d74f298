package io.djltp.examples.train;

import java.util.function.IntSupplier;
import java.util.function.Supplier;

/** Says, when Ctrl-C or a signal ends the process before the model is saved, what is saved. */
final class StopNotice {

    private final Thread hook;

    /**
     * Waits for the end.
     *
     * @param shown whether this process says anything
     * @param steps the number of steps that were done
     * @param saved returns where the newest checkpoint is, or {@code null} if there is none
     */
    StopNotice(boolean shown, IntSupplier steps, Supplier<String> saved) {
        hook = new Thread(() -> print(steps.getAsInt(), saved.get()), "tp-stop");
        if (shown) {
            Runtime.getRuntime().addShutdownHook(hook);
        }
    }

    private static void print(int steps, String saved) {
        System.err.printf(
                "%ntp: stopped after %d steps, before %s.%n",
                steps,
                saved == null
                        ? "anything was saved. --minutes or --steps ends a run with a saved model,"
                                + " --checkpoint-minutes saves it on the way"
                        : "the model was saved. " + saved);
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
