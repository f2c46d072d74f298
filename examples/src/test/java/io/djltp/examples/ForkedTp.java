package io.djltp.examples;

import org.testng.SkipException;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntFunction;
import java.util.function.Predicate;
import java.util.stream.Collectors;

/** The tp command in a JVM of its own, or in several that {@code mpirun} starts. */
public final class ForkedTp implements AutoCloseable {

    private final Process process;
    private final Path out;
    private final Path err;

    private ForkedTp(List<String> command, Map<String, String> environment) throws IOException {
        out = Files.createTempFile("tp", ".out");
        err = Files.createTempFile("tp", ".err");
        ProcessBuilder builder = new ProcessBuilder(command);
        // what this JVM was started by is none of the job's business
        builder.environment()
                .keySet()
                .removeIf(name -> name.matches("(OMPI|PMIX|SLURM|TORCHELASTIC)_.*"));
        List.of("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
                .forEach(builder.environment()::remove);
        List.of("MASTER_ADDR", "MASTER_PORT", "TP_MASTER_PORT", "TP_SECRET", "TP_SECRET_FILE")
                .forEach(builder.environment()::remove);
        builder.environment().putAll(environment);
        builder.redirectOutput(out.toFile()).redirectError(err.toFile());
        process = builder.start();
    }

    /**
     * How a process ended.
     *
     * @param status its exit status
     * @param out what it printed
     * @param err what it printed as errors
     */
    public record Result(int status, String out, String err) {}

    /**
     * Starts the command.
     *
     * @param environment environment variables
     * @param arguments the arguments
     * @return the process
     * @throws IOException if it cannot be started
     */
    public static ForkedTp start(Map<String, String> environment, List<String> arguments)
            throws IOException {
        return new ForkedTp(java(arguments), environment);
    }

    /**
     * Starts the processes of a job, and waits for all of them.
     *
     * @param environments the environment variables of each
     * @param arguments the arguments of each
     * @return how each ended
     * @throws IOException if one cannot be started
     * @throws InterruptedException if the time of the test is over
     */
    public static List<Result> job(
            List<Map<String, String>> environments, IntFunction<String> arguments)
            throws IOException, InterruptedException {
        List<ForkedTp> processes = new ArrayList<>();
        List<Result> results = new ArrayList<>();
        try {
            for (int i = 0; i < environments.size(); i++) {
                List<String> words = List.of(arguments.apply(i).split(" "));
                processes.add(start(environments.get(i), words));
            }
            for (ForkedTp process : processes) {
                results.add(process.await());
            }
        } finally {
            for (ForkedTp process : processes) {
                process.close();
            }
        }
        return results;
    }

    /**
     * Starts the command in several processes. Skips the test where there is no Open MPI.
     *
     * @param processes the number of processes
     * @param arguments the arguments
     * @return the launcher
     * @throws IOException if it cannot be started
     */
    public static ForkedTp mpirun(int processes, List<String> arguments) throws IOException {
        skipWithout("mpirun", "apt-get install openmpi-bin libopenmpi3");
        List<String> command = new ArrayList<>();
        command.addAll(List.of("mpirun", "--oversubscribe", "--bind-to", "none"));
        command.addAll(List.of("-n", "" + processes));
        command.add("env"); // of a java that it starts itself mpirun changes the class path
        command.addAll(java(arguments));
        // for root in a container
        return new ForkedTp(
                command,
                Map.of("OMPI_ALLOW_RUN_AS_ROOT", "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"));
    }

    /**
     * Starts a script that starts the command.
     *
     * @param command the script and its arguments
     * @param environment environment variables
     * @return the script
     * @throws IOException if it cannot be started
     */
    public static ForkedTp script(List<String> command, Map<String, String> environment)
            throws IOException {
        return new ForkedTp(command, environment);
    }

    /**
     * Skips the test where a program is missing.
     *
     * @param program the program
     * @param remedy how to get it
     */
    public static void skipWithout(String program, String remedy) {
        for (String folder : System.getenv("PATH").split(File.pathSeparator)) {
            if (Files.isExecutable(Path.of(folder, program))) {
                return;
            }
        }
        throw new SkipException("There is no " + program + ": " + remedy);
    }

    private static List<String> java(List<String> arguments) {
        List<String> command = command();
        command.addAll(arguments);
        return command;
    }

    /**
     * Returns what starts the command, without arguments.
     *
     * @return the words of the command line
     */
    public static List<String> command() {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        // several JVMs start on few cores
        command.addAll(
                List.of(
                        "-Xmx512m",
                        "-XX:+UseSerialGC",
                        "-XX:TieredStopAtLevel=1",
                        "-XX:-UsePerfData"));
        command.add(System.getProperty("djltp.test.archive.option", "-Xshare:auto"));
        command.addAll(List.of("--enable-native-access=ALL-UNNAMED", "-Dai.djl.offline=true"));
        command.add("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
        command.addAll(List.of("-cp", classPath(), Tp.class.getName()));
        return command;
    }

    /** Looking into folders for each of thousands of classes takes a tenth of a short run. */
    private static String classPath() {
        return Arrays.stream(System.getProperty("java.class.path").split(File.pathSeparator))
                .sorted(Comparator.comparing(entry -> !entry.endsWith(".jar"))) // stable
                .collect(Collectors.joining(File.pathSeparator));
    }

    /**
     * Waits for the end.
     *
     * @return how it ended
     * @throws IOException if what it printed cannot be read
     * @throws InterruptedException if the time of the test is over
     */
    public Result await() throws IOException, InterruptedException {
        try {
            return new Result(process.waitFor(), read(out), read(err));
        } catch (InterruptedException e) { // the stacks tell why
            send("QUIT");
            LockSupport.parkNanos(TimeUnit.SECONDS.toNanos(1));
            System.err.println("the process hangs: " + new Result(-1, read(out), read(err)));
            throw e;
        }
    }

    /** A JVM says which options it takes from its environment, as those of containers do. */
    private static String read(Path file) throws IOException {
        String text = Files.readString(file, StandardCharsets.UTF_8);
        return text.replaceAll("(?m)^(NOTE: )?Picked up \\w*JAVA\\w*: .*\\R", "");
    }

    /**
     * Waits until the process has printed something, and ends it as Ctrl-C does.
     *
     * @param text what it prints
     * @return how it ended
     * @throws IOException if what it printed cannot be read
     * @throws InterruptedException if the time of the test is over
     */
    public Result stopAfter(String text) throws IOException, InterruptedException {
        awaitOutput(printed -> printed.contains(text));
        return stop();
    }

    /**
     * Waits until the process has printed something, or has ended.
     *
     * @param enough whether that is enough
     * @throws IOException if what it printed cannot be read
     * @throws InterruptedException if the time of the test is over
     */
    public void awaitOutput(Predicate<String> enough) throws IOException, InterruptedException {
        while (process.isAlive() && !enough.test(Files.readString(out))) {
            Thread.sleep(20);
        }
    }

    /**
     * Writes to the standard input of the process.
     *
     * @param text what is typed
     * @throws IOException if the process has ended
     */
    public void type(String text) throws IOException {
        process.getOutputStream().write(text.getBytes(StandardCharsets.UTF_8));
        process.getOutputStream().flush();
    }

    /**
     * Ends the process as Ctrl-C does.
     *
     * @return how it ended
     * @throws IOException if what it printed cannot be read
     * @throws InterruptedException if the time of the test is over
     */
    public Result stop() throws IOException, InterruptedException {
        process.destroy(); // SIGTERM: for Java the same as SIGINT
        return await();
    }

    /**
     * Kills the process at once.
     *
     * @return how it ended
     * @throws IOException if what it printed cannot be read
     * @throws InterruptedException if the time of the test is over
     */
    public Result kill() throws IOException, InterruptedException {
        process.destroyForcibly();
        return await();
    }

    /**
     * Sends a signal, and waits for the end.
     *
     * @param name its name, such as {@code HUP}
     * @return how it ended
     * @throws IOException if what it printed cannot be read
     * @throws InterruptedException if the time of the test is over
     */
    public Result signal(String name) throws IOException, InterruptedException {
        send(name);
        return await();
    }

    /**
     * Sends a signal.
     *
     * @param name its name
     * @throws IOException if there is no {@code kill}
     * @throws InterruptedException if the time of the test is over
     */
    public void send(String name) throws IOException, InterruptedException {
        new ProcessBuilder("kill", "-" + name, "" + process.pid()).start().waitFor();
    }

    /**
     * Returns whether the process runs.
     *
     * @return whether it has not ended
     */
    public boolean isAlive() {
        return process.isAlive();
    }

    /** Ends what still runs. */
    @Override
    public void close() throws IOException {
        process.descendants().forEach(ProcessHandle::destroyForcibly);
        process.destroyForcibly();
        Files.delete(out);
        Files.delete(err);
    }
}
