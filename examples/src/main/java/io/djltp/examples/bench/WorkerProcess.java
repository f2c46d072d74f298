package io.djltp.examples.bench;

import com.google.gson.Gson;

import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.Tp;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.net.URISyntaxException;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * A {@link BenchWorker} in a JVM of its own, with the options and the environment of this one: what
 * it measures shares neither memory nor threads with the others.
 */
final class WorkerProcess implements AutoCloseable {

    private static final Gson GSON = new Gson();
    private static final String END = "end";
    private static final int END_SECONDS = 10;

    private final WorkerTask task;
    private final Duration timeout;
    private final Process process;
    private final PrintWriter commands;
    private final BlockingQueue<String> answers = new LinkedBlockingQueue<>();

    /**
     * Starts a process of any kind that answers as a {@link BenchWorker} does.
     *
     * @param task what it measures
     * @param timeout how long an answer may take
     * @param command what starts it
     * @throws IOException if it cannot be started
     */
    WorkerProcess(WorkerTask task, Duration timeout, List<String> command) throws IOException {
        this.task = task;
        this.timeout = timeout;
        ProcessBuilder builder = new ProcessBuilder(command);
        // not as an argument: of a command line longer than a page, Java shows no arguments at all
        builder.environment().put("CLASSPATH", System.getProperty("java.class.path"));
        builder.redirectError(ProcessBuilder.Redirect.INHERIT);
        process = builder.start();
        commands = new PrintWriter(process.outputWriter(StandardCharsets.UTF_8), true);
        Thread reader = new Thread(this::read, "reader of a worker");
        reader.setDaemon(true);
        reader.start();
        commands.println(GSON.toJson(task));
    }

    /**
     * Waits until the process is ready for the first step.
     *
     * @throws WorkerFailedException if it fails or does not answer
     */
    void awaitReady() {
        await();
    }

    /** Returns what starts a main class in a JVM with the options of this one. */
    static List<String> command(Class<?> main) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        for (String option : ManagementFactory.getRuntimeMXBean().getInputArguments()) {
            // a debugger or an agent is meant for one process
            if (!option.startsWith("-agent") && !option.startsWith("-javaagent")) {
                command.add(option);
            }
        }
        command.add(main.getName());
        return command;
    }

    private void read() {
        try (BufferedReader lines = process.inputReader(StandardCharsets.UTF_8)) {
            lines.lines()
                    .forEach(
                            line -> {
                                if (line.startsWith(BenchWorker.MARK)) {
                                    answers.add(line.substring(BenchWorker.MARK.length()));
                                } else {
                                    System.err.println(line); // native code prints where it likes
                                }
                            });
        } catch (IOException | UncheckedIOException e) {
            System.err.println(e);
        } finally {
            answers.add(END);
        }
    }

    /** Returns what the process measures. */
    WorkerTask getTask() {
        return task;
    }

    /** Lets the process do one step, and returns what it has measured. */
    double[] step() {
        return steps(1).get(0);
    }

    /**
     * Lets the process do steps one after another, none of which waits for this process.
     *
     * @param count how many
     * @return what it has measured in each
     */
    List<double[]> steps(int count) {
        commands.print((BenchWorker.STEP + "\n").repeat(count));
        commands.flush();
        List<double[]> measured = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            measured.add(measured());
        }
        return measured;
    }

    /** Returns the largest resident memory that the process has had, in bytes. */
    long peakResident() {
        commands.println(BenchWorker.PEAK);
        return (long) measured()[0];
    }

    private double[] measured() {
        return GSON.fromJson(await(), double[].class);
    }

    private String await() {
        try {
            String answer = answers.poll(timeout.toMillis(), TimeUnit.MILLISECONDS);
            if (answer == null) {
                throw failed("has not answered for " + timeout.toSeconds() + " s (see --timeout)");
            }
            if (answer.equals(END)) {
                throw failed("has ended: " + status());
            }
            if (answer.startsWith(BenchWorker.ERROR)) {
                throw failed("has failed: " + answer.substring(BenchWorker.ERROR.length()).trim());
            }
            return answer;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw failed("was not awaited: the command was interrupted");
        }
    }

    private String status() throws InterruptedException {
        if (!process.waitFor(END_SECONDS, TimeUnit.SECONDS)) {
            return "it has closed its output";
        }
        int status = process.exitValue();
        boolean killed = status == 128 + 9;
        return "status " + status + (killed ? ", killed, perhaps for want of memory" : "");
    }

    private WorkerFailedException failed(String what) {
        return new WorkerFailedException(
                "The process that measures %s %s".formatted(task.describe(), what));
    }

    /** Ends the process. */
    @Override
    public void close() {
        commands.close(); // the process ends itself
        try {
            if (!process.waitFor(END_SECONDS, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
            }
        } catch (InterruptedException e) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
    }

    /**
     * What a worker process measures.
     *
     * @param side whose time it takes
     * @param workload what is trained, or {@code null}
     * @param optimizer the optimizer, or {@code null}
     * @param head how the head is computed, or {@code null}
     * @param ranks the number of ranks
     * @param threads the threads of a rank
     * @param sizes the sizes of messages in bytes, of the floor the side of its matrices, or {@code
     *     null}
     * @param precision that of this library's products
     * @param gpu whether each rank has a GPU
     */
    record WorkerTask(
            Side side,
            @Nullable Workload workload,
            @Nullable OptimizerName optimizer,
            @Nullable HeadKind head,
            int ranks,
            int threads,
            @Nullable List<Long> sizes,
            Precision precision,
            boolean gpu) {

        /** Whose time is taken. */
        enum Side {
            /** This library. */
            OURS("this library"),
            /** DJL's own layers and trainer. */
            STOCK("stock DJL"),
            /** PyTorch, in a process of Python. */
            PYTORCH("PyTorch"),
            /** What the machine can do. */
            FLOOR("the floor"),
            /** The operations between ranks. */
            COLLECTIVE("the operations");

            final String title;

            Side(String title) {
                this.title = title;
            }
        }

        static WorkerTask ours(
                Workload workload,
                OptimizerName optimizer,
                HeadKind head,
                int ranks,
                int threads,
                Precision precision) {
            return new WorkerTask(
                    Side.OURS, workload, optimizer, head, ranks, threads, null, precision, false);
        }

        /** A training of a peer, in float32. */
        static WorkerTask peer(Side side, Workload workload, OptimizerName optimizer, int threads) {
            return new WorkerTask(
                    side, workload, optimizer, null, 1, threads, null, Precision.FLOAT32, false);
        }

        /** Something that has no network: see {@link #sizes}. */
        static WorkerTask probe(Side side, int ranks, int threads, List<Long> sizes) {
            return new WorkerTask(
                    side, null, null, null, ranks, threads, sizes, Precision.FLOAT32, false);
        }

        /** Returns the same on GPUs. */
        WorkerTask onGpu() {
            return new WorkerTask(
                    side, workload, optimizer, head, ranks, threads, sizes, precision, true);
        }

        /** Returns the process in words. */
        String describe() {
            String ofRanks = " on " + Tp.count(ranks, "rank");
            return side.title
                    + (side == Side.STOCK || side == Side.FLOOR ? "" : ofRanks)
                    + (workload == null ? "" : ", " + workload.shape())
                    + (precision == Precision.FLOAT32 ? "" : ", " + precision);
        }
    }

    /**
     * A script of {@code examples/peers} and the Python that runs it.
     *
     * @param python the command
     * @param version of its PyTorch
     * @param script the file
     */
    record PythonPeer(String python, String version, Path script) {

        private static final int SECONDS = 60; // a first import reads some hundred MB

        /**
         * Finds a Python with PyTorch.
         *
         * @param wanted the command, or {@code null} for the first that has it
         * @param script the name of the script
         * @return the two, or nothing without PyTorch
         */
        static Optional<PythonPeer> find(@Nullable String wanted, String script) {
            Stream<String> commands =
                    wanted != null ? Stream.of(wanted) : Stream.of("python3", "/usr/bin/python3");
            return commands.map(each -> ask(each, script)).filter(Objects::nonNull).findFirst();
        }

        private static @Nullable PythonPeer ask(String python, String script) {
            try {
                Process process =
                        new ProcessBuilder(python, "-c", "import torch; print(torch.__version__)")
                                .redirectError(ProcessBuilder.Redirect.DISCARD)
                                .start();
                process.getOutputStream().close();
                if (!process.waitFor(SECONDS, TimeUnit.SECONDS)) {
                    process.destroyForcibly();
                    return null;
                }
                String version =
                        new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
                return process.exitValue() == 0 && !version.isBlank()
                        ? new PythonPeer(python, version.trim(), file(script))
                        : null;
            } catch (IOException e) {
                return null; // there is no such command
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new WorkerFailedException("The command was interrupted");
            }
        }

        private static Path file(String script) {
            URL url = PythonPeer.class.getResource("/peers/" + script);
            try {
                if (url != null && url.getProtocol().equals("file")) {
                    return Path.of(url.toURI());
                }
            } catch (URISyntaxException e) {
                throw new IllegalStateException(e);
            }
            throw new BadInputException(
                    "examples/peers/" + script + " is no file here: run ./tp of a clone");
        }

        /** Returns what starts it; without files of its own beside the script. */
        List<String> command() {
            return List.of(python, "-B", script.toString());
        }
    }
}
