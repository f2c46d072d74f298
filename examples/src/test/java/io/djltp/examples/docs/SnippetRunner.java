package io.djltp.examples.docs;

import java.lang.reflect.InvocationTargetException;

/**
 * Runs the compiled snippets that it is given, one after another, and says which of them failed.
 */
public final class SnippetRunner {

    private SnippetRunner() {}

    /**
     * Runs snippets.
     *
     * @param classes the names of the classes
     * @throws ReflectiveOperationException if a class is not there or has no main method
     */
    public static void main(String[] classes) throws ReflectiveOperationException {
        int failed = 0;
        for (String name : classes) {
            System.out.println("== " + name);
            long start = System.nanoTime();
            try {
                Class.forName(name)
                        .getMethod("main", String[].class)
                        .invoke(null, (Object) new String[0]);
            } catch (InvocationTargetException e) {
                failed++;
                System.out.println("FAILED " + name);
                e.getCause().printStackTrace(System.out);
            }
            System.out.printf("== %d ms%n", (System.nanoTime() - start) / 1_000_000);
        }
        System.exit(failed == 0 ? 0 : 1);
    }
}
