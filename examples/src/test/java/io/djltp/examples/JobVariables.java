package io.djltp.examples;

import io.djltp.testing.FreePort;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

/** The environment variables of a process of a job on this machine. */
public final class JobVariables {

    private JobVariables() {}

    /**
     * Returns what a launcher would set.
     *
     * @param process the number of the process
     * @param processes the number of processes
     * @param port the port at which process 0 listens
     * @return the variables
     */
    public static Map<String, String> of(int process, int processes, int port) {
        return Map.of(
                "RANK", "" + process,
                "WORLD_SIZE", "" + processes,
                "MASTER_ADDR", "127.0.0.1",
                "MASTER_PORT", "" + port);
    }

    /**
     * Returns what a launcher would set for all processes of a job.
     *
     * @param processes the number of processes
     * @return the variables of each
     * @throws IOException if there is no free port
     */
    public static List<Map<String, String>> ofAll(int processes) throws IOException {
        int port = FreePort.find();
        return IntStream.range(0, processes).mapToObj(i -> of(i, processes, port)).toList();
    }
}
