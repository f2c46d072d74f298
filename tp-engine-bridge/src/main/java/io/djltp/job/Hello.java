package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;

import org.jspecify.annotations.Nullable;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.concurrent.ThreadLocalRandom;

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
 * @param address the address of its machine at which it meets the master
 * @param encryptData whether it wants data encrypted, or {@code null} if that is not said
 */
record Hello(
        long instance,
        String version,
        int process,
        int processes,
        int ranks,
        String host,
        long pid,
        String address,
        @Nullable Boolean encryptData) {

    private static final String OTHER_JOB = ", or another MASTER_PORT if they are of two jobs";

    /** Returns what this process says. */
    static Hello own(LaunchEnvironment environment, JobOptions options, InetAddress address) {
        String host;
        try {
            host = InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            host = "unknown-host"; // a machine that does not know itself
        }
        return new Hello(
                ThreadLocalRandom.current().nextLong(),
                options.version,
                environment.process(),
                environment.processes(),
                options.ranks,
                host,
                ProcessHandle.current().pid(),
                address.getHostAddress(),
                options.encryptData);
    }

    /** Returns the process as a member of a job that it fits. */
    JobMember member() {
        int count = ranks / processes;
        return new JobMember(process, host, pid, process * count, count, address);
    }

    /** Returns the same, reached at another address. */
    Hello at(InetAddress place) {
        String text = place.getHostAddress();
        return new Hello(
                instance, version, process, processes, ranks, host, pid, text, encryptData);
    }

    /** Says who it is before it is known to fit. */
    String who() {
        return "process %d (pid %d on %s)".formatted(process, pid, host);
    }

    /**
     * Says why another process makes no job with this one, or returns {@code null} if it does.
     *
     * @param other who comes
     * @param known this process, or the one that has come with the number of the other
     */
    @Nullable String mismatch(Hello other, Hello known) {
        String differ = who() + " says %s, " + other.who() + " says %s: %s";
        if (!version.equals(other.version)) {
            return differ.formatted(
                    "version " + version,
                    "version " + other.version,
                    "start the same version of the library in all processes");
        }
        if (processes != other.processes) {
            String remedy = "set the same world size for all processes" + OTHER_JOB;
            return differ.formatted(processes + " processes", other.processes, remedy);
        }
        if (ranks != other.ranks) {
            String remedy = "give the same number of ranks to all processes" + OTHER_JOB;
            return differ.formatted(ranks + " ranks", other.ranks, remedy);
        }
        if (other.process < 0 || other.process >= processes) {
            return other.who() + " does not exist in a job of " + processes + " processes";
        }
        boolean twice = known.process == other.process && known.instance != other.instance;
        return twice
                ? "%s and %s have the same number: give every process a RANK of its own%s"
                        .formatted(known.who(), other.who(), OTHER_JOB)
                : null;
    }
}
