package io.djltp.collective;

import org.testng.Assert;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;

/**
 * Runs a main class of the tests in a JVM of its own: for what holds once for a process, such as
 * the libraries it has loaded and the memory it takes.
 */
public final class ForkedJvm {

    private static final int SECONDS = 280;

    private final List<String> command = new ArrayList<>();
    private final List<String> options = new ArrayList<>();
    private final Map<String, String> environment = new java.util.HashMap<>();
    private final String archive = System.getProperty("djltp.test.archive.option", "-Xshare:auto");
    private String classPath = System.getProperty("java.class.path");

    /**
     * Creates a JVM with the class path and the settings of this one: one compiler, because it does
     * not run for long, and because the second takes tens of MiB when it has work.
     */
    public ForkedJvm() {
        options.add("-XX:TieredStopAtLevel=1");
        options.add("-XX:+UseSerialGC");
        options.add(archive);
        // files of it in /tmp may belong to a process of another container
        options.add("-XX:-UsePerfData");
        options.add("--enable-native-access=ALL-UNNAMED"); // newer JVMs warn without these
        options.add("-XX:+IgnoreUnrecognizedVMOptions");
        options.add("--sun-misc-unsafe-memory-access=allow");
        options.add("-Dai.djl.offline=true");
        options.add("-DdisableProgressBar=true");
        options.add("-XX:ErrorFile=" + System.getProperty("java.io.tmpdir") + "/forked-jvm.log");
        options.add("-Dorg.slf4j.simpleLogger.defaultLogLevel=error");
    }

    /**
     * Creates a JVM whose heap is in memory from the start: what grows is native.
     *
     * @param mebibytes the size of the heap
     * @return the JVM
     */
    public static ForkedJvm withFixedHeap(int mebibytes) {
        String heap = mebibytes + "m";
        return new ForkedJvm()
                .option("-Xms" + heap)
                .option("-Xmx" + heap)
                .option("-XX:+AlwaysPreTouch");
    }

    /**
     * Adds an option.
     *
     * @param option the option
     * @return this
     */
    public ForkedJvm option(String option) {
        options.add(option);
        return this;
    }

    /**
     * Sets an environment variable.
     *
     * @param name the name
     * @param value the value
     * @return this
     */
    public ForkedJvm environment(String name, String value) {
        environment.put(name, value);
        return this;
    }

    /**
     * Lets it load all libraries that the JVM of a user does: see {@link ForkOptions}.
     *
     * @return this
     */
    public ForkedJvm asUsual() {
        return option("-Dorg.bytedeco.openblas.load=");
    }

    /**
     * Puts a folder at the start of the class path.
     *
     * @param folder the folder
     * @return this
     */
    public ForkedJvm classPath(Path folder) {
        classPath = folder + java.io.File.pathSeparator + classPath;
        return this;
    }

    /**
     * Takes jars off the class path.
     *
     * @param names what is a part of their names
     * @return this
     */
    public ForkedJvm without(String... names) {
        classPath =
                Arrays.stream(classPath.split(java.io.File.pathSeparator))
                        .filter(jar -> Arrays.stream(names).noneMatch(jar::contains))
                        .collect(Collectors.joining(java.io.File.pathSeparator));
        return this;
    }

    /**
     * Runs it as the user nobody, which only root can.
     *
     * @param classes a folder of classes and jars that all users can read
     */
    public void asNobody(Path classes) {
        command.addAll(
                List.of("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"));
        options.remove(archive); // nobody may be unable to read it
        classPath = classes + java.io.File.pathSeparator + classes.resolve("*");
    }

    /**
     * Runs a main class to its end.
     *
     * @param main the class
     * @param arguments its arguments
     * @return the exit code, and what it wrote
     * @throws IOException if the JVM cannot be started
     * @throws InterruptedException if the time of the test is over
     */
    public Result run(Class<?> main, String... arguments) throws IOException, InterruptedException {
        Path output = Files.createTempFile("forked", ".txt");
        Process process = builder(output, main, arguments).start();
        try {
            boolean over = process.waitFor(SECONDS, TimeUnit.SECONDS);
            String text = Files.readString(output, StandardCharsets.UTF_8);
            // a JVM says which options it takes from its environment, as those of containers do
            text = text.replaceAll("(?m)^(NOTE: )?Picked up \\w*JAVA\\w*: .*\\R", "");
            return new Result(over ? process.exitValue() : -1, text);
        } catch (InterruptedException e) { // the time of the test is over: the stacks tell why
            Runtime.getRuntime().exec(new String[] {"kill", "-QUIT", "" + process.pid()});
            LockSupport.parkNanos(TimeUnit.SECONDS.toNanos(1));
            System.err.println(main.getName() + " hangs: " + Files.readString(output));
            throw e;
        } finally {
            process.destroyForcibly();
            Files.delete(output);
        }
    }

    /**
     * Returns what starts a main class.
     *
     * @param output the file that it writes to
     * @param main the class
     * @param arguments its arguments
     * @return what starts it
     */
    public ProcessBuilder builder(Path output, Class<?> main, String... arguments) {
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(options);
        command.addAll(List.of("-cp", classPath, main.getName()));
        command.addAll(List.of(arguments));
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.environment().putAll(environment);
        return builder.redirectErrorStream(true).redirectOutput(output.toFile());
    }

    /**
     * Runs a main class to its end, which must be a good one.
     *
     * @param main the class
     * @param arguments its arguments
     * @return what it wrote
     * @throws IOException if the JVM cannot be started
     * @throws InterruptedException if the time of the test is over
     */
    public String succeed(Class<?> main, String... arguments)
            throws IOException, InterruptedException {
        return run(main, arguments).outputOf(0);
    }

    /**
     * Begins to run a main class.
     *
     * @param main the class
     * @param arguments its arguments
     * @return what {@link #run} returns or throws
     */
    public CompletableFuture<Result> start(Class<?> main, String... arguments) {
        CompletableFuture<Result> result = new CompletableFuture<>();
        Runnable task =
                () -> {
                    try {
                        result.complete(run(main, arguments));
                    } catch (IOException | InterruptedException e) {
                        result.completeExceptionally(e);
                    }
                };
        new Thread(task).start();
        return result;
    }

    /**
     * How a process ended.
     *
     * @param exitCode its exit code, or -1 if it took too long
     * @param output what it wrote
     */
    public record Result(int exitCode, String output) {

        /**
         * Returns what the process wrote.
         *
         * @param expected the exit code that it must have
         * @return what it wrote
         */
        public String outputOf(int expected) {
            Assert.assertEquals(exitCode, expected, output);
            return output;
        }
    }
}
