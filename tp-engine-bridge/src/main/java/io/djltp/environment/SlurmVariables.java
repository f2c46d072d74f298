package io.djltp.environment;

/** What Slurm sets for the tasks of a step. */
final class SlurmVariables {

    private static final String STEP_ID = "SLURM_STEP_ID";
    private static final String JOB_ID = "SLURM_JOB_ID";
    private static final String PROCID = "SLURM_PROCID";
    private static final String NTASKS = "SLURM_NTASKS";
    private static final int PORTS = 20_000;

    /** From this number on, a step is no step: it is a batch script, or a shell of salloc. */
    private static final long NO_STEP = 0xfffffff0L;

    private SlurmVariables() {}

    /**
     * Returns whether srun has started this process. The other variables of Slurm are there in an
     * allocation too, where nothing was launched, and the script of sbatch even has a number.
     */
    static boolean isTask(LaunchVariables variables) {
        if (!variables.isSet(PROCID)) {
            return false;
        }
        if (variables.isSet(STEP_ID)) {
            String step = variables.get(STEP_ID);
            return !step.matches("\\d{10}") || Long.parseLong(step) < NO_STEP;
        }
        return !variables.isSet(JOB_ID) || !variables.get(PROCID).equals("0");
    }

    static LaunchEnvironment read(LaunchVariables variables) {
        int processes = variables.count(NTASKS, PROCID);
        int process = variables.index(PROCID, NTASKS, processes);
        int local = variables.localIndex("SLURM_LOCALID");
        String address = variables.masterAddress();
        if (address == null) {
            // of a step on one machine nobody needs to know the name
            boolean one = "1".equals(variables.get("SLURM_STEP_NUM_NODES"));
            address = one ? LaunchVariables.LOOPBACK : firstNode(variables);
        }
        if (address == null && processes > 1) {
            throw LaunchVariables.missing(
                    "SLURM_STEP_NODELIST",
                    "SLURM_NTASKS=" + processes,
                    "by starting with srun, or set MASTER_ADDR to the host of task 0");
        }
        int port = variables.masterPort();
        String run = "";
        if (port == 0 && variables.isSet(JOB_ID)) {
            long job = job(variables);
            port = PORTS + (int) (job % PORTS);
            // the steps of a job may run at the same time, and a job that was requeued has the
            // number that it had
            run = "Slurm " + job + "." + variables.get(STEP_ID);
            if (variables.isSet("SLURM_RESTART_COUNT")) {
                run += " " + variables.get("SLURM_RESTART_COUNT");
            }
        }
        return new LaunchEnvironment("Slurm", process, processes, local, address, port, run);
    }

    private static String firstNode(LaunchVariables variables) {
        String[] names = {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"};
        for (String name : names) {
            if (variables.isSet(name)) {
                return SlurmNodes.first(name, variables.get(name));
            }
        }
        return null;
    }

    private static long job(LaunchVariables variables) {
        String value = variables.get(JOB_ID);
        try {
            return Long.parseUnsignedLong(value) & Long.MAX_VALUE;
        } catch (NumberFormatException e) {
            throw LaunchVariables.malformed(JOB_ID, value, "the number of the job");
        }
    }
}
