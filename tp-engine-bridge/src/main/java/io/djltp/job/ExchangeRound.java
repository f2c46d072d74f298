package io.djltp.job;

import java.io.IOException;
import java.util.List;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.stream.IntStream;

/** The parts of the processes in the present exchange, at the master. */
final class ExchangeRound {

    private final List<JobMember> members;
    private final SortedMap<Integer, Message> parts = new TreeMap<>();
    private long number;

    ExchangeRound(List<JobMember> members) {
        this.members = members;
    }

    /**
     * Takes a process's part.
     *
     * @return whether it is the first of the exchange
     * @throws IOException if the process cannot have a part in this exchange
     */
    boolean arrive(int process, Message part) throws IOException {
        long round = part.content(Message.Turn.class).round();
        if (round != number
                || part.parts().length != 1
                || parts.putIfAbsent(process, part) != null) {
            throw new IOException("its part of exchange " + round + " in exchange " + number);
        }
        return parts.size() == 1;
    }

    boolean isComplete() {
        return parts.size() == members.size();
    }

    /** Returns the name that a process that has come has for the exchange. */
    private String name(int process) {
        return parts.get(process).content(Message.Turn.class).what();
    }

    /** Returns the name of the exchange, or {@code null} if nobody has come. */
    String name() {
        return parts.isEmpty() ? null : name(parts.firstKey());
    }

    /** Returns the numbers of those who have not come. */
    List<Integer> missing() {
        return IntStream.range(0, members.size())
                .filter(process -> !parts.containsKey(process))
                .boxed()
                .toList();
    }

    /** Returns how the processes differ on what they exchange, or {@code null} if they agree. */
    String disagreement() {
        for (int i = 1; i < members.size(); i++) {
            if (!name(i).equals(name(0))) {
                return ("%s is in the exchange '%s', but %s in '%s': call the same on all processes, in"
                                + " the same order and one thread")
                        .formatted(members.get(0), name(0), members.get(i), name(i));
            }
        }
        return null;
    }

    /** Returns the parts of all, and starts the next round. */
    byte[][] finish() {
        byte[][] all = parts.values().stream().map(part -> part.parts()[0]).toArray(byte[][]::new);
        parts.clear();
        number++;
        return all;
    }
}
