package io.djltp.environment;

/** What torchrun sets, and who sets the same by hand. */
final class TorchrunVariables {

    private static final String WORLD_SIZE = "WORLD_SIZE";
    private static final String RUN_ID = "TORCHELASTIC_RUN_ID";

    private TorchrunVariables() {}

    static LaunchEnvironment read(LaunchVariables variables) {
        int processes = variables.count(WORLD_SIZE, "RANK");
        int process = variables.index("RANK", WORLD_SIZE, processes);
        int local = variables.localIndex("LOCAL_RANK");
        String address = variables.masterAddress();
        int port = variables.masterPort();
        if (processes > 1 && address == null) {
            throw LaunchVariables.missing(
                    LaunchVariables.MASTER_ADDR,
                    "WORLD_SIZE=" + processes,
                    "to the host of RANK 0");
        }
        if (processes > 1 && port == 0 && variables.ownPort() == 0) {
            throw LaunchVariables.missing(
                    LaunchVariables.MASTER_PORT,
                    "WORLD_SIZE=" + processes,
                    "to a free port of the host of RANK 0");
        }
        String run = run(variables);
        if (!run.isEmpty()) {
            if (variables.get(WORLD_SIZE).equals(variables.get("LOCAL_WORLD_SIZE"))) {
                // all on this machine, whose name may stand for an address that others reach
                address = LaunchVariables.LOOPBACK;
            }
            if ("true".equalsIgnoreCase(variables.get("TORCHELASTIC_USE_AGENT_STORE"))) {
                // torchrun's own agent listens there
                port = MasterPort.derive(run);
            }
        }
        return new LaunchEnvironment("torchrun", process, processes, local, address, port, run);
    }

    /**
     * Returns the name of the run: that of torchrun ("none" for all to whom none was given), the
     * port, which no other agent of the host has, and how often it was started anew. The agents of
     * several machines count that for themselves, and not always alike.
     */
    private static String run(LaunchVariables variables) {
        if (!variables.isSet(RUN_ID)) {
            return "";
        }
        String port = variables.get(LaunchVariables.MASTER_PORT);
        String run = "torchrun " + variables.get(RUN_ID) + " " + port;
        return "1".equals(variables.get("GROUP_WORLD_SIZE"))
                ? run + " " + variables.get("TORCHELASTIC_RESTART_COUNT")
                : run;
    }
}
