package io.djltp.testing;

import org.testng.Assert;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/** The threads of ranks in this JVM that were not there before. */
public final class RankThreads {

    private final Set<Thread> before = Collections.newSetFromMap(new IdentityHashMap<>());

    /** Notes the threads that there are. */
    public RankThreads() {
        before.addAll(all());
    }

    /** Asserts how many there are. */
    public void assertCount(int expected) throws InterruptedException {
        List<Thread> threads = await(expected, 10);
        Assert.assertEquals(threads.size(), expected, describe(threads));
    }

    /** Waits until there are so many: a thread that has done its work may take a moment to end. */
    List<Thread> await(int expected, long seconds) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        List<Thread> threads = added();
        while (threads.size() != expected && System.nanoTime() < end) {
            Thread.sleep(10);
            threads = added();
        }
        return threads;
    }

    /** Returns the threads that are alive now. */
    private List<Thread> added() {
        List<Thread> added = new ArrayList<>(all());
        added.removeAll(before);
        return added;
    }

    /** Returns the threads and what each of them is doing. */
    static String describe(Collection<Thread> threads) {
        StringBuilder text = new StringBuilder("threads of ranks:");
        for (Thread thread : threads) {
            text.append("\n  ").append(thread.getName()).append(' ').append(thread.getState());
            for (StackTraceElement element : thread.getStackTrace()) {
                text.append("\n    at ").append(element);
            }
        }
        return text.toString();
    }

    private static List<Thread> all() {
        return Thread.getAllStackTraces().keySet().stream()
                .filter(thread -> thread.getName().startsWith("tp-rank-"))
                .filter(Thread::isAlive)
                .toList();
    }
}
