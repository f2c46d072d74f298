package io.djltp.testing;

import java.util.concurrent.Callable;

/** Runs what throws checked exceptions where none may be thrown. */
public final class Unchecked {

    private Unchecked() {}

    /** What may throw. */
    @FunctionalInterface
    public interface Task {

        /** Runs. */
        void run() throws Exception;
    }

    /** Runs a task. */
    public static void run(Task task) {
        call(
                () -> {
                    task.run();
                    return null;
                });
    }

    /** Returns what a task returns. */
    public static <T> T call(Callable<T> task) {
        try {
            return task.call();
        } catch (RuntimeException e) {
            throw e;
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
