package io.djltp.training;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import io.djltp.collective.ForkedJvm;
import io.djltp.testing.FreePort;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Java processes of tests, such as find each other by the variables of a launcher. */
public final class JobProcess {

    private JobProcess() {}

    /** Returns ports that are free: one for each job. */
    public static List<String> ports(int count) throws IOException {
        List<String> ports = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            ports.add("" + FreePort.find());
        }
        return ports;
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
                Path output = Files.createTempFile("process", ".txt");
                ForkedJvm jvm =
                        new ForkedJvm()
                                .option("-Xmx128m")
                                .environment("RANK", "" + i)
                                .environment("WORLD_SIZE", "" + statuses.length)
                                .environment("MASTER_ADDR", "127.0.0.1")
                                .environment("OMP_NUM_THREADS", "1");
                String[] all = arguments.toArray(String[]::new);
                processes.add(new Running(jvm.builder(output, main, all).start(), output));
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
