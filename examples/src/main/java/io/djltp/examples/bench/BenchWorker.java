package io.djltp.examples.bench;

import com.google.gson.Gson;

import io.djltp.examples.bench.Floor.FloorProbe;
import io.djltp.examples.bench.WorkerProcess.WorkerTask;
import io.djltp.internal.report.SystemMemory;
import io.djltp.internal.torch.Autograd;
import io.djltp.torch.NativeAllocator;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * The main class of a process that measures one side. It gets a {@link WorkerTask} as JSON in the
 * first line of its standard input, then does what each line says, and answers in lines of standard
 * output that begin with {@value #MARK}. It waits asleep, and ends when its input does.
 */
public final class BenchWorker {

    static final String MARK = "@";
    static final String STEP = "step";
    static final String PEAK = "peak";
    static final String READY = "ready";
    static final String ERROR = "error";

    private static final Gson GSON = new Gson();

    private BenchWorker() {}

    /**
     * Runs the process.
     *
     * @param args none
     */
    public static void main(String[] args) {
        PrintStream answers = System.out;
        System.setOut(System.err); // whatever a library prints is not an answer
        try {
            BlockingQueue<String> lines = readLines();
            try (Measured measured = create(GSON.fromJson(lines.take(), WorkerTask.class))) {
                answer(answers, READY);
                while (true) {
                    String line = lines.take();
                    answer(answers, line.equals(STEP) ? step(measured) : peak());
                }
            }
        } catch (Throwable e) { // an OutOfMemoryError too
            e.printStackTrace();
            answer(answers, ERROR + " " + e.toString().replace('\n', ' '));
            Runtime.getRuntime().halt(1);
        }
    }

    private static BlockingQueue<String> readLines() {
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        Thread reader =
                new Thread(
                        () -> {
                            try (BufferedReader in =
                                    new BufferedReader(
                                            new InputStreamReader(
                                                    System.in, StandardCharsets.UTF_8))) {
                                for (String line = in.readLine();
                                        line != null;
                                        line = in.readLine()) {
                                    lines.add(line);
                                }
                            } catch (IOException e) {
                                e.printStackTrace();
                            }
                            // nobody waits any more, not even for the end of a step
                            Runtime.getRuntime().halt(0);
                        },
                        "commands");
        reader.setDaemon(true);
        reader.start();
        return lines;
    }

    private static Measured create(WorkerTask task) {
        if (task.side() == WorkerTask.Side.OURS || task.side() == WorkerTask.Side.COLLECTIVE) {
            NativeAllocator.keepFreedArrays(); // as the tp command does; stock runs as it comes
            // of several ranks this thread does no more than hand out the batch: with threads of
            // its own for that, those of the ranks would sleep after each operation
            Autograd.setThreads(task.ranks() > 1 ? 1 : task.threads());
        }
        switch (task.side()) {
            case FLOOR:
                return new FloorProbe(Objects.requireNonNull(task.sizes()).get(0));
            case COLLECTIVE:
                return new CollectiveProbe(task);
            default:
                return new TrainingStep(task);
        }
    }

    private static String step(Measured measured) {
        return Arrays.toString(measured.step()); // a JSON list too
    }

    private static String peak() {
        return "[" + SystemMemory.peakResident().orElse(0) + "]";
    }

    private static void answer(PrintStream answers, String text) {
        answers.println(MARK + text);
        answers.flush();
    }

    /** Something that is done again and again, and takes its own time. */
    interface Measured extends AutoCloseable {

        /**
         * Does it once.
         *
         * @return what was measured, always as many values in the same order
         */
        double[] step();

        /** {@inheritDoc} */
        @Override
        void close();
    }
}
