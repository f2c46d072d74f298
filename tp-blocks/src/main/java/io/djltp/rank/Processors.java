package io.djltp.rank;

import io.djltp.job.Job;
import io.djltp.job.JobMember;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** How many processors a rank may use, so that those of a machine do not use more than it has. */
final class Processors {

    private static final Path OWN = Path.of("/proc/self/status");
    private static final Path FIRST = Path.of("/proc/1/status");
    private static final String ALLOWED = "Cpus_allowed_list:";

    private Processors() {}

    /**
     * Returns the processors for each rank of this process.
     *
     * @param job the job, or {@code null} if this process is alone
     * @param localRanks the ranks of this process
     * @return their number, at least 1
     */
    static int perRank(@Nullable Job job, int localRanks) {
        int sharing =
                job == null || isPinned()
                        ? localRanks
                        : ranksOfThisMachine(job, job.getProcesses());
        return Math.max(1, Runtime.getRuntime().availableProcessors() / sharing);
    }

    /** Returns how many ranks the first processes of a job have on the machine of this one. */
    static int ranksOfThisMachine(Job job, int processes) {
        String host = job.getMember(job.getProcess()).host();
        return IntStream.range(0, processes)
                .mapToObj(job::getMember)
                .filter(member -> member.host().equals(host))
                .mapToInt(JobMember::ranks)
                .sum();
    }

    /**
     * Returns whether the launcher has given this process processors of its own: fewer than the
     * first process of the machine, or of its container, may use.
     */
    static boolean isPinned() {
        try {
            return allowed(OWN) < allowed(FIRST);
        } catch (IOException e) {
            return false; // not Linux
        }
    }

    private static int allowed(Path status) throws IOException {
        try (Stream<String> lines = Files.lines(status)) {
            return lines.filter(line -> line.startsWith(ALLOWED))
                    .mapToInt(line -> count(line.substring(ALLOWED.length())))
                    .sum();
        }
    }

    /** Returns how many numbers a list such as {@code 0-3,8} has. */
    static int count(String list) {
        return Stream.of(list.trim().split(","))
                .map(range -> range.split("-"))
                .mapToInt(ends -> 1 + Integer.parseInt(ends[ends.length - 1]) - first(ends))
                .sum();
    }

    private static int first(String[] ends) {
        return Integer.parseInt(ends[0]);
    }
}
