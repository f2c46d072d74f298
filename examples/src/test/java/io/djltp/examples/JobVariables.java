package io.djltp.examples;

import java.util.Map;

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
}
