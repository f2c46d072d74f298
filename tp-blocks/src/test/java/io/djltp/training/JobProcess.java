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

/** Processes that find each other by the variables of a launcher, and run one job or several. */
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
        List<Process> processes = new ArrayList<>();
        List<List<String>> lines = new ArrayList<>();
        try {
            for (int i = 0; i < 2; i++) {
                processes.add(start(main, i, 2, folder.resolve("output" + i), arguments));
            }
            for (int i = 0; i < 2; i++) {
                boolean ended = processes.get(i).waitFor(seconds, TimeUnit.SECONDS);
                lines.add(Files.readAllLines(folder.resolve("output" + i)));
                assertTrue(ended, "process " + i + " hangs: " + lines.get(i));
                assertEquals(processes.get(i).exitValue(), 0, "" + lines.get(i));
            }
        } finally {
            processes.forEach(Process::destroyForcibly);
        }
        return lines;
    }

    /** Starts a process of the jobs, with the class path of this one. */
    public static Process start(
            Class<?> main, int process, int processes, Path output, List<String> arguments)
            throws IOException {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(
                List.of(
                        "-Xmx128m",
                        "-XX:+UseSerialGC",
                        "-XX:TieredStopAtLevel=1",
                        "-XX:-UsePerfData"));
        command.add(System.getProperty("djltp.test.archive.option", "-Xshare:auto"));
        command.addAll(List.of("-Dai.djl.offline=true", "-DdisableProgressBar=true"));
        command.add("-Dorg.slf4j.simpleLogger.defaultLogLevel=error");
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.add(main.getName());
        command.addAll(arguments);
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.environment()
                .putAll(
                        Map.of(
                                "RANK",
                                "" + process,
                                "WORLD_SIZE",
                                "" + processes,
                                "MASTER_ADDR",
                                "127.0.0.1",
                                "OMP_NUM_THREADS",
                                "1"));
        return builder.redirectErrorStream(true).redirectOutput(output.toFile()).start();
    }
}
