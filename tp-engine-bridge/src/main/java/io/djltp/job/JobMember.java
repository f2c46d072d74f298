package io.djltp.job;

/**
 * A process of a job.
 *
 * @param process the number of the process, from 0
 * @param host the name of the machine it runs on
 * @param pid its process id on that machine
 * @param firstRank the first of its ranks
 * @param ranks the number of its ranks
 */
public record JobMember(int process, String host, long pid, int firstRank, int ranks) {

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "process %d (%s, pid %d on %s)".formatted(process, rankText(), pid, host);
    }

    /** Says which rank of this process is meant, such as "rank 3 (process 1, pid 77 on node2)". */
    String describeRank(int rank) {
        if (rank < firstRank || rank >= firstRank + ranks) {
            return toString();
        }
        return "rank %d (process %d, pid %d on %s)".formatted(rank, process, pid, host);
    }

    private String rankText() {
        return ranks == 1 ? "rank " + firstRank : "ranks " + firstRank + "-" + lastRank();
    }

    private int lastRank() {
        return firstRank + ranks - 1;
    }
}
