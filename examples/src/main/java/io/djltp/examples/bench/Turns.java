package io.djltp.examples.bench;

import io.djltp.examples.bench.WorkerProcess.PythonPeer;
import io.djltp.examples.bench.WorkerProcess.WorkerTask;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.Random;
import java.util.stream.IntStream;

/**
 * Processes that measure in turns: steps of each for a tenth of a second, two at least, then the
 * next of each. What changes on the machine in the meantime changes for all of them, and no two
 * compute at once.
 */
final class Turns implements AutoCloseable {

    private static final long SEED = 7;
    private static final double HALF_TURN_SECONDS = 0.05;
    private static final int WARM_UPS = 2;
    private static final int PAUSE_MILLIS = 20; // the threads of the last one fall asleep

    private final List<WorkerProcess> workers = new ArrayList<>();
    private final List<List<double[]>> results = new ArrayList<>();

    /**
     * Starts the processes, and waits until all are ready.
     *
     * @param tasks what each measures
     * @param timeout how long an answer may take
     * @param python what runs the tasks of PyTorch, or {@code null} if there are none
     * @throws IOException if a process cannot be started
     * @throws WorkerFailedException if one fails or does not answer
     */
    Turns(List<WorkerTask> tasks, Duration timeout, @Nullable PythonPeer python)
            throws IOException {
        try {
            for (WorkerTask task : tasks) {
                List<String> command =
                        task.side() == WorkerTask.Side.PYTORCH
                                ? Objects.requireNonNull(python, "PyTorch").command()
                                : WorkerProcess.command(BenchWorker.class);
                workers.add(new WorkerProcess(task, timeout, command));
                results.add(new ArrayList<>());
            }
            workers.forEach(WorkerProcess::awaitReady);
        } catch (IOException | RuntimeException e) {
            close();
            throw e;
        }
    }

    /**
     * Measures.
     *
     * @param options how often
     */
    void run(BenchOptions options) {
        for (WorkerProcess worker : workers) {
            warmUp(worker, options);
        }
        List<Integer> order = new ArrayList<>(IntStream.range(0, workers.size()).boxed().toList());
        Random random = new Random(SEED);
        for (int i = 0; i < options.repeats; i++) {
            // a process may leave work to the system that slows down the next one
            Collections.shuffle(order, random);
            for (int worker : order) {
                results.get(worker).add(turn(workers.get(worker)));
            }
        }
    }

    private static void warmUp(WorkerProcess worker, BenchOptions options) {
        long end = System.nanoTime() + (long) (options.warmupSeconds * 1e9);
        for (int i = 0; i < WARM_UPS || System.nanoTime() < end; i++) {
            worker.step(); // without a pause: the virtual machine compiles what runs often
        }
    }

    /** Returns the medians of the second half of a turn: in the first one threads wake up. */
    private static double[] turn(WorkerProcess worker) {
        pause();
        long begin = System.nanoTime();
        worker.step();
        double seconds = (System.nanoTime() - begin) / 1e9;
        int half = (int) Math.max(1, Math.ceil(HALF_TURN_SECONDS / seconds));
        List<double[]> others = worker.steps(2 * half - 1);
        return medians(others.subList(half - 1, others.size()));
    }

    private static double[] medians(List<double[]> steps) {
        return IntStream.range(0, steps.get(0).length)
                .mapToDouble(i -> Samples.median(steps.stream().map(step -> step[i]).toList()))
                .toArray();
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MILLIS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new WorkerFailedException("The command was interrupted");
        }
    }

    /** Returns one of the values that a process has measured in each of its turns. */
    List<Double> values(int worker, int value) {
        return results.get(worker).stream().map(measured -> measured[value]).toList();
    }

    /** Returns the median of one of the values. */
    double median(int worker, int value) {
        return Samples.median(values(worker, value));
    }

    /** Returns how far one of the values is spread. */
    double spread(int worker, int value) {
        return Samples.spread(values(worker, value));
    }

    /** Returns a process. */
    WorkerProcess process(int worker) {
        return workers.get(worker);
    }

    /** Ends all processes. */
    @Override
    public void close() {
        workers.forEach(WorkerProcess::close);
    }
}
