package io.djltp.job;

/**
 * What a process says of itself when it comes.
 *
 * @param instance a random number, by which a process that comes again is known
 * @param version the version of its library
 * @param process its number
 * @param processes the number of processes, as it was told
 * @param ranks the number of ranks of the job, as it was told
 * @param host the name of its machine
 * @param pid its process id
 * @param meshHost the address at which its ranks can be reached
 * @param meshPort the port at which they can be reached
 */
record Hello(
        long instance,
        String version,
        int process,
        int processes,
        int ranks,
        String host,
        long pid,
        String meshHost,
        int meshPort) {

    /** Returns the same, reached elsewhere. */
    Hello at(String newHost, int newPort) {
        return new Hello(instance, version, process, processes, ranks, host, pid, newHost, newPort);
    }

    /** Returns the process as a member of a job that it fits. */
    JobMember member() {
        int local = ranks / processes;
        return new JobMember(process, host, pid, process * local, local);
    }

    /** Says who it is before it is known to fit. */
    String who() {
        return "process %d (pid %d on %s)".formatted(process, pid, host);
    }
}
