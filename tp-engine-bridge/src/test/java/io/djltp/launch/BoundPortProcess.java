package io.djltp.launch;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;
import io.djltp.job.Job;
import io.djltp.job.JobOptions;

import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;

/**
 * A process of a program that starts its processes by itself: its number, the number of processes,
 * and the file in which process 0 tells the others its port.
 */
public final class BoundPortProcess {

    private static final String HOST = "127.0.0.1";

    private BoundPortProcess() {}

    /**
     * Joins, and prints what each process has sent.
     *
     * @param args see above
     * @throws Exception if it cannot join
     */
    public static void main(String[] args) throws Exception {
        int process = Integer.parseInt(args[0]);
        int processes = Integer.parseInt(args[1]);
        Path file = Path.of(args[2]);
        ServerSocketChannel bound = process == 0 ? MasterPort.bindEphemeral(HOST) : null;
        int port = process == 0 ? tell(file, MasterPort.getPort(bound)) : hear(file);
        LaunchEnvironment environment =
                new LaunchEnvironment("mine", process, processes, process, HOST, port);
        JobOptions options =
                JobOptions.builder()
                        .setRanks(2 * processes)
                        .optSecret("drawn by the program".getBytes(StandardCharsets.UTF_8))
                        .optTimeout(Duration.ofSeconds(30))
                        .build();
        try (Job job = Launcher.join(environment, options, bound)) {
            byte[] mine = ByteBuffer.allocate(4).putInt(10 + job.getFirstRank()).array();
            for (byte[] each : job.exchange("first ranks", mine)) {
                print(ByteBuffer.wrap(each).getInt());
            }
        }
    }

    private static int tell(Path file, int port) throws Exception {
        Path written = Files.writeString(Path.of(file + ".new"), "" + port);
        Files.move(written, file, StandardCopyOption.ATOMIC_MOVE);
        return port;
    }

    private static int hear(Path file) throws Exception {
        while (!Files.exists(file)) {
            Thread.sleep(20);
        }
        return Integer.parseInt(Files.readString(file));
    }

    // what it prints is what the test reads
    private static void print(int number) {
        System.out.println(number);
    }
}
