package io.djltp.collective.mpi;

import org.testng.SkipException;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** Runs a main class of the tests in several processes, started by {@code mpirun}. */
final class MpiRun {

    private static final int SECONDS = 60;

    private final int processes;
    private final List<String> options = new ArrayList<>();
    private final List<String> launch = new ArrayList<>();

    /**
     * Creates a job.
     *
     * @param processes the number of processes
     */
    MpiRun(int processes) {
        this.processes = processes;
    }

    /** Adds an option of the JVM. */
    MpiRun option(String option) {
        options.add(option);
        return this;
    }

    /** Adds options of mpirun. */
    MpiRun launch(String... added) {
        launch.addAll(List.of(added));
        return this;
    }

    /** Skips the test where there is no Open MPI. */
    static void skipWithoutMpi() {
        String[] folders = System.getenv("PATH").split(java.io.File.pathSeparator);
        if (Stream.of(folders).noneMatch(each -> Files.isExecutable(Path.of(each, "mpirun")))) {
            throw new SkipException("There is no mpirun: apt-get install openmpi-bin libopenmpi3");
        }
        MpiLibrary.whyNot()
                .ifPresent(
                        reason -> {
                            throw new SkipException(reason);
                        });
    }

    /**
     * Runs the job to its end.
     *
     * @param main the class
     * @param arguments its arguments
     * @return how mpirun ended, and what all processes wrote
     */
    Result run(Class<?> main, String... arguments) throws IOException, InterruptedException {
        Path output = Files.createTempFile("mpirun", ".txt");
        ProcessBuilder builder = new ProcessBuilder(command(main, arguments));
        // for root in a container
        builder.environment().put("OMPI_ALLOW_RUN_AS_ROOT", "1");
        builder.environment().put("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        builder.redirectErrorStream(true).redirectOutput(output.toFile());
        Process process = builder.start();
        try {
            boolean over = process.waitFor(SECONDS, TimeUnit.SECONDS);
            String text = Files.readString(output, StandardCharsets.UTF_8);
            return new Result(over ? process.exitValue() : -1, text);
        } finally {
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly();
            Files.delete(output);
        }
    }

    private List<String> command(Class<?> main, String... arguments) {
        List<String> command = new ArrayList<>();
        if (processes > 0) {
            command.addAll(List.of("mpirun", "--oversubscribe", "--bind-to", "none"));
            command.addAll(List.of("-n", String.valueOf(processes)));
            command.addAll(launch);
            command.add("env"); // of a java that it starts itself mpirun changes the class path
        }
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.add("-Xmx256m");
        command.add("-XX:TieredStopAtLevel=1"); // several JVMs start on few cores
        command.addAll(List.of("-XX:+UseSerialGC", "-XX:-UsePerfData"));
        command.add(System.getProperty("djltp.test.archive.option", "-Xshare:auto"));
        command.add("-Dai.djl.offline=true");
        command.add("-DdisableProgressBar=true");
        command.add("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
        command.add(
                "-XX:ErrorFile=" + Path.of(System.getProperty("java.io.tmpdir"), "forked-jvm.log"));
        command.addAll(options);
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), main.getName()));
        command.addAll(List.of(arguments));
        return command;
    }

    /**
     * How a job ended.
     *
     * @param exitCode the exit code of mpirun, or -1 if it took more than a minute
     * @param output what all processes wrote
     */
    record Result(int exitCode, String output) {

        /** Returns what a rank reported. */
        String report(int rank, String subject) {
            String start = "REPORT " + rank + " " + subject + ": ";
            return output.lines()
                    .filter(line -> line.contains(start))
                    .map(line -> line.substring(line.indexOf(start) + start.length()))
                    .findFirst()
                    .orElse("no " + subject + " from rank " + rank + " in: " + output);
        }
    }

    /** Writes a line in one piece, for {@link Result#report}. */
    static void report(int rank, String subject, String text) {
        String line = "REPORT " + rank + " " + subject + ": " + text + "\n";
        byte[] bytes = line.getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }
}
