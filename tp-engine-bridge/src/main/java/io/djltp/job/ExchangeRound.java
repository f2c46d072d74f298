package io.djltp.job;

import java.io.IOException;
import java.util.List;
import java.util.TreeSet;

/** The parts of the processes in the present exchange, at the master. */
final class ExchangeRound {

    private final List<JobMember> members;
    private final String[] names;
    private final byte[][] parts;
    private int arrived;
    private long number;
    private long since;

    ExchangeRound(List<JobMember> members) {
        this.members = members;
        names = new String[members.size()];
        parts = new byte[members.size()][];
    }

    /**
     * Takes a process's part.
     *
     * @throws IOException if the process cannot have a part in this exchange
     */
    void arrive(int process, long round, String what, byte[] part) throws IOException {
        if (round != number || names[process] != null) {
            throw new IOException("its part of exchange " + round + " in exchange " + number);
        }
        names[process] = what;
        parts[process] = part;
        if (arrived++ == 0) {
            since = System.nanoTime();
        }
    }

    boolean isComplete() {
        return arrived == names.length;
    }

    boolean hasArrived(int process) {
        return names[process] != null;
    }

    /** Returns whether some have come, and how long ago the first. */
    boolean waitsLonger(long nanos) {
        return arrived > 0 && System.nanoTime() - since > nanos;
    }

    /** Returns the name that the first process that has come has for the exchange. */
    String name() {
        for (String name : names) {
            if (name != null) {
                return name;
            }
        }
        return null;
    }

    /** Returns the numbers of those who have not come. */
    TreeSet<Integer> missing() {
        TreeSet<Integer> missing = new TreeSet<>();
        for (int i = 0; i < names.length; i++) {
            if (names[i] == null) {
                missing.add(i);
            }
        }
        return missing;
    }

    /** Returns how the processes differ on what they exchange, or {@code null} if they agree. */
    String disagreement() {
        for (int i = 1; i < names.length; i++) {
            if (!names[i].equals(names[0])) {
                return "%s is in the exchange '%s', but %s in '%s': call the same on all processes"
                        .formatted(members.get(0), names[0], members.get(i), names[i]);
            }
        }
        return null;
    }

    /** Returns the parts of all, and starts the next round. */
    byte[][] finish() {
        byte[][] all = parts.clone();
        for (int i = 0; i < names.length; i++) {
            names[i] = null;
            parts[i] = null;
        }
        arrived = 0;
        number++;
        return all;
    }
}
