package io.djltp.examples.chaos;

import io.djltp.examples.JobVariables;
import io.djltp.testing.FreePort;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** A job whose processes are started as a launcher does it, each a small JVM. */
final class ForkedJob {

    private ForkedJob() {}

    /**
     * Starts a job.
     *
     * @param main the class that each process runs
     * @param arguments its arguments
     * @param logs where each process prints to
     * @return the processes
     */
    static List<Process> start(Class<?> main, List<String> arguments, List<Path> logs)
            throws IOException {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"));
        command.addAll(List.of("-XX:-UsePerfData", "-Dai.djl.offline=true"));
        command.add(System.getProperty("djltp.test.archive.option", "-Xshare:auto"));
        command.add("-DdisableProgressBar=true");
        command.add("-Dorg.slf4j.simpleLogger.defaultLogLevel=error");
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), main.getName()));
        command.addAll(arguments);
        int port = FreePort.find();
        List<Process> processes = new ArrayList<>();
        for (Path log : logs) {
            ProcessBuilder builder = new ProcessBuilder(command);
            builder.environment().putAll(JobVariables.of(processes.size(), logs.size(), port));
            builder.environment().put("OMP_NUM_THREADS", "1");
            builder.redirectErrorStream(true).redirectOutput(log.toFile());
            processes.add(builder.start());
        }
        return processes;
    }
}
