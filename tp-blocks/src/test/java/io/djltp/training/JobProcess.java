package io.djltp.training;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Java processes of tests, such as find each other by the variables of a launcher. */
public final class JobProcess {

    private JobProcess() {}

    /** Returns ports that are free: one for each job. */
    public static List<String> ports(int count) throws IOException {
        List<ServerSocket> sockets = new ArrayList<>();
        List<String> ports = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            sockets.add(new ServerSocket(0, 1, InetAddress.getLoopbackAddress()));
            ports.add("" + sockets.get(i).getLocalPort());
        }
        for (ServerSocket socket : sockets) {
            socket.close();
        }
        return ports;
    }

    /** Runs the two processes of jobs to their end, a good one, and returns the lines of each. */
    public static List<List<String>> runTwo(
            Class<?> main, Path folder, int seconds, List<String> arguments) throws Exception {
        return run(main, seconds, arguments, 0, 0);
    }

    /**
     * Runs the processes of jobs to their end, and returns the lines of each.
     *
     * @param main their class
     * @param seconds how long they may take
     * @param arguments their arguments
     * @param statuses the status with which each ends
     * @return the lines of each
     */
    public static List<List<String>> run(
            Class<?> main, int seconds, List<String> arguments, int... statuses)
            throws IOException, InterruptedException {
        List<Running> processes = new ArrayList<>();
        List<List<String>> lines = new ArrayList<>();
        try {
            for (int i = 0; i < statuses.length; i++) {
                ProcessBuilder builder = java(main, List.of("-Xmx128m"), arguments);
                builder.environment()
                        .putAll(
                                Map.of(
                                        "RANK",
                                        "" + i,
                                        "WORLD_SIZE",
                                        "" + statuses.length,
                                        "MASTER_ADDR",
                                        "127.0.0.1",
                                        "OMP_NUM_THREADS",
                                        "1"));
                processes.add(start(builder));
            }
            for (int i = 0; i < statuses.length; i++) {
                lines.add(processes.get(i).end(seconds, statuses[i]));
            }
        } finally {
            for (Running each : processes) {
                each.close();
            }
        }
        return lines;
    }

    /** Returns what starts a Java process with the class path of this one. */
    public static ProcessBuilder java(Class<?> main, List<String> options, List<String> arguments) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(options);
        command.addAll(List.of("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"));
        command.add(System.getProperty("djltp.test.archive.option", "-Xshare:auto"));
        command.add("--enable-native-access=ALL-UNNAMED"); // newer JVMs warn without it
        command.addAll(List.of("-Dai.djl.offline=true", "-DdisableProgressBar=true"));
        command.add("-Dorg.slf4j.simpleLogger.defaultLogLevel=error");
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), main.getName()));
        command.addAll(arguments);
        return new ProcessBuilder(command);
    }

    /** Runs a process to its end, a good one, and returns what it prints. */
    public static String run(ProcessBuilder builder, int seconds)
            throws IOException, InterruptedException {
        try (Running process = start(builder)) {
            return String.join("\n", process.end(seconds, 0));
        }
    }

    private static Running start(ProcessBuilder builder) throws IOException {
        Path output = Files.createTempFile("process", ".txt");
        builder.redirectErrorStream(true).redirectOutput(output.toFile());
        return new Running(builder.start(), output);
    }

    private record Running(Process process, Path output) implements AutoCloseable {

        List<String> end(int seconds, int status) throws IOException, InterruptedException {
            boolean ended = process.waitFor(seconds, TimeUnit.SECONDS);
            List<String> lines = new ArrayList<>(Files.readAllLines(output));
            lines.removeIf(line -> line.matches("(NOTE: )?Picked up \\w*JAVA\\w*: .*"));
            assertTrue(ended, "the process hangs: " + lines);
            assertEquals(process.exitValue(), status, "" + lines);
            return lines;
        }

        @Override
        public void close() throws IOException {
            process.destroyForcibly();
            Files.delete(output);
        }
    }
}
