package io.djltp.job;

/**
 * A process of a job.
 *
 * @param process the number of the process, from 0
 * @param host the name of the machine it runs on
 * @param pid its process id on that machine
 * @param firstRank the first of its ranks
 * @param ranks the number of its ranks
 * @param address the address at which this process reaches its machine; of itself, the one at which
 *     it is to listen, which is the wildcard if that is all of them
 */
public record JobMember(
        int process, String host, long pid, int firstRank, int ranks, String address) {

    /** {@inheritDoc} */
    @Override
    public String toString() {
        int last = firstRank + ranks - 1;
        String numbers = ranks == 1 ? "rank " + firstRank : "ranks " + firstRank + "-" + last;
        return "process %d (%s, pid %d on %s)".formatted(process, numbers, pid, host);
    }

    /** Says which rank of this process is meant, such as "rank 3 (process 1, pid 77 on node2)". */
    String describeRank(int rank) {
        return holds(rank)
                ? "rank %d (process %d, pid %d on %s)".formatted(rank, process, pid, host)
                : toString();
    }

    boolean holds(int rank) {
        return rank >= firstRank && rank < firstRank + ranks;
    }
}
