package io.djltp.examples.bench;

import com.google.gson.Gson;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** A {@link MemberProcess} in a JVM of its own, as the process that started it sees it. */
final class MemberJvm implements AutoCloseable {

    private static final Gson GSON = new Gson();

    private final MemberTask task;
    private final Process process;
    private final PrintWriter commands;
    private final BufferedReader answers;

    /**
     * Starts a JVM; its first report comes unasked.
     *
     * @param task what it has to do
     * @throws IOException if it cannot be started
     */
    MemberJvm(MemberTask task) throws IOException {
        this.task = task;
        ProcessBuilder builder = new ProcessBuilder(WorkerProcess.command(MemberProcess.class));
        builder.environment().put("CLASSPATH", System.getProperty("java.class.path"));
        process = builder.redirectError(ProcessBuilder.Redirect.INHERIT).start();
        commands = new PrintWriter(process.outputWriter(StandardCharsets.UTF_8), true);
        answers = process.inputReader(StandardCharsets.UTF_8);
        commands.println(GSON.toJson(task));
    }

    void tell(String command) {
        commands.println(command);
    }

    /** Waits for the next report. */
    MemberReport await() throws IOException {
        for (String line = answers.readLine(); line != null; line = answers.readLine()) {
            if (line.startsWith(BenchWorker.MARK + BenchWorker.ERROR)) {
                throw new WorkerFailedException(describe() + " has failed: " + line);
            }
            if (line.startsWith(BenchWorker.MARK)) {
                return GSON.fromJson(line.substring(1), MemberReport.class);
            }
        }
        throw new WorkerFailedException(describe() + " has ended");
    }

    private String describe() {
        return "The process with %d members from %d on".formatted(task.count(), task.first());
    }

    /** Kills it, so that it can say nothing more. */
    void kill() {
        process.destroyForcibly();
    }

    /** Lets it stand still, with all its connections open. */
    void freeze() throws IOException {
        new ProcessBuilder(List.of("kill", "-STOP", "" + process.pid())).inheritIO().start();
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        process.destroyForcibly();
        try {
            process.waitFor();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
