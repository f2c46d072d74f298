package io.djltp.checkpoint.store;

import java.io.IOException;
import java.util.Collection;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;

/**
 * Streams the parts of a process, two at a time: while the disk has a chunk of one, checksums of
 * the other are computed. The ranks to which the parts belong follow both alike, and two threads
 * take their processor time of two cores, where one would hold up the rank whose core it shares,
 * and all others that wait for this rank.
 */
final class PartStreams {

    /** What is done with a part. */
    @FunctionalInterface
    interface Task {

        void stream(PartWriter part) throws IOException;
    }

    private final Queue<PartWriter> left;
    private final Task task;
    private volatile Throwable failure;

    private PartStreams(Collection<PartWriter> parts, Task task) {
        left = new ConcurrentLinkedQueue<>(parts);
        this.task = task;
    }

    /**
     * Streams all parts, in the calling thread and, if there are several, in another.
     *
     * @param parts the parts
     * @param task what is done with each
     * @throws IOException if one cannot be streamed; no thread works on any when it is thrown
     */
    static void run(Collection<PartWriter> parts, Task task) throws IOException {
        PartStreams streams = new PartStreams(parts, task);
        Thread other = null;
        if (parts.size() > 1) {
            other = new Thread(streams::work, Thread.currentThread().getName() + "-2");
            other.setDaemon(true);
            other.start();
        }
        streams.work();
        if (other != null) {
            join(other);
        }
        streams.check();
    }

    private void work() {
        try {
            for (PartWriter part = left.poll(); part != null; part = left.poll()) {
                task.stream(part);
            }
        } catch (IOException | RuntimeException | Error e) {
            left.clear();
            failure = e;
        }
    }

    /** Who is interrupted interrupts the other, whose file is closed by that. */
    private static void join(Thread other) {
        boolean interrupted = false;
        while (other.isAlive()) {
            try {
                other.join();
            } catch (InterruptedException e) {
                interrupted = true;
                other.interrupt();
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void check() throws IOException {
        if (failure instanceof IOException e) {
            throw e;
        }
        if (failure instanceof RuntimeException e) {
            throw e;
        }
        if (failure instanceof Error e) {
            throw e;
        }
    }
}
