package io.djltp.job;

import static java.util.stream.Collectors.joining;

import io.netty.channel.EventLoop;
import io.netty.util.concurrent.Future;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.IntFunction;
import java.util.stream.IntStream;

/**
 * The control of process 0: it hears all others, and tells all what one says. The exchange and who
 * has gone are known on the thread of the connections alone.
 */
final class MasterControl implements ControlPlane, Link.Events {

    private static final String WAITED_IN_VAIN = "time-out after"; // as the backends say it
    private static final String NOT_COME =
            "%s did not come to the exchange '%s' within %s: see whether its program has gone"
                    + " another way or has returned, or give the job a longer time-out";
    private static final String NOT_HEARD =
            "%s. The exchange '%s' has waited for it for %s: see whether its process was stopped,"
                    + " or cannot be reached any more";
    private static final int MAX_TEXT = 8 * 1024;

    private final List<JobMember> members;
    private final Map<Integer, Link> others;
    private final JobContext local;
    private final EventLoop loop;
    private final ExchangeRound round;
    private final Set<Integer> gone = new TreeSet<>();
    private CompletableFuture<byte[][]> result;
    private Future<?> alarm; // of the exchange
    private long sent;

    /**
     * Creates a control.
     *
     * @param members all processes
     * @param others the links to all but this one, by their numbers
     * @param local this process
     */
    MasterControl(List<JobMember> members, Map<Integer, Link> others, JobContext local) {
        this.members = members;
        this.others = others;
        this.local = local;
        loop = local.loop().thread();
        round = new ExchangeRound(members);
        others.values().forEach(link -> link.setEvents(this));
    }

    /** {@inheritDoc} */
    @Override
    public CompletableFuture<byte[][]> exchange(String what, byte[] mine) {
        CompletableFuture<byte[][]> all = new CompletableFuture<>();
        loop.execute(
                () -> {
                    result = all;
                    Message.Turn turn = new Message.Turn(sent++, what);
                    try {
                        arrive(0, new Message(Message.Type.EXCHANGE, turn, mine));
                    } catch (IOException e) {
                        declare(0, " has lost its turn: " + e.getMessage());
                    }
                });
        return all;
    }

    private void arrive(int process, Message part) throws IOException {
        if (round.arrive(process, part)) {
            long millis = local.options().getTimeout().toMillis();
            alarm = loop.schedule(this::tooLate, millis, TimeUnit.MILLISECONDS);
        }
        advance();
    }

    /** {@inheritDoc} */
    @Override
    public void fail(JobFailedException failure) {
        JobFailedException told = withWhereabouts(failure);
        byte[] message = Message.fail(told).encode();
        local.state().fail(told, () -> others.values().forEach(link -> link.send(message)));
    }

    /** Of a rank that waited in vain, the error says where the others are: only process 0 knows. */
    private JobFailedException withWhereabouts(JobFailedException failure) {
        if (!failure.getMessage().contains(WAITED_IN_VAIN)) {
            return failure;
        }
        String places =
                members.stream()
                        .filter(member -> member.process() != failure.getProcess())
                        .map(member -> lastStatus(member.process()))
                        .filter(last -> !last.isEmpty())
                        .collect(joining("; "));
        String text = ErrorTexts.cut(failure.getMessage() + ". Meanwhile: " + places, MAX_TEXT);
        return places.isEmpty()
                ? failure
                : new JobFailedException(
                        text, failure.getProcess(), failure.getRank(), failure.getCause());
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        Link.finish(others.values());
    }

    /** {@inheritDoc} */
    @Override
    public void received(Link link, Message message) throws IOException {
        switch (message.type()) {
            case EXCHANGE:
                arrive(link.hello().process(), message);
                break;
            case FAIL:
                fail(message.failure());
                break;
            case GOODBYE:
                gone.add(link.hello().process());
                advance();
                break;
            default:
                throw new IOException("a message of the master's own: " + message.type());
        }
    }

    /** {@inheritDoc} */
    @Override
    public void ended(Link link) {
        if (!gone.contains(link.hello().process())) {
            declare(link.hello().process(), link.describeEnd());
        }
    }

    /** Notes that a process has not been heard for too long. */
    void silent(Link link) {
        declare(
                link.hello().process(),
                link.describeSilence(local.options().getHeartbeatTimeout()));
    }

    private void declare(int process, String what) {
        fail(new JobFailedException(members.get(process) + what, process, -1, null));
    }

    /** Ends the exchange if all have come, or if one can come no more. */
    private void advance() {
        if (!round.isComplete()) {
            if (round.name() != null) {
                String text = " has ended and takes no part in '" + round.name() + "'";
                round.missing().stream().filter(gone::contains).forEach(it -> declare(it, text));
            }
            return;
        }
        alarm.cancel(false);
        String disagreement = round.disagreement();
        if (disagreement != null) {
            fail(new JobFailedException(disagreement, -1, -1, null));
            return;
        }
        byte[][] all = round.finish();
        byte[] message = new Message(Message.Type.RESULT, "", all).encode();
        others.values().forEach(link -> link.send(message));
        result.complete(all);
    }

    /** Of those who have not come, who is not heard any more is the cause: it is not elsewhere. */
    private void tooLate() {
        List<Integer> missing = round.missing();
        List<Integer> silent = missing.stream().filter(this::isSilent).toList();
        fail(
                silent.isEmpty()
                        ? late(missing, this::describeLast, NOT_COME)
                        : late(silent, this::describeSilence, NOT_HEARD));
    }

    private JobFailedException late(
            List<Integer> processes, IntFunction<String> describe, String text) {
        String who =
                processes.stream().mapToInt(it -> it).mapToObj(describe).collect(joining(", "));
        String time = ErrorTexts.time(local.options().getTimeout());
        int one = processes.size() == 1 ? processes.get(0) : -1;
        return new JobFailedException(text.formatted(who, round.name(), time), one, -1, null);
    }

    private boolean isSilent(int process) {
        long nanos = Heartbeats.several(local.options().getHeartbeatTimeout());
        return process != 0 && others.get(process).isSilent(nanos);
    }

    private String describeSilence(int process) {
        Link link = others.get(process);
        return members.get(process) + link.describeSilence(link.silence());
    }

    private String describeLast(int process) {
        String last = lastStatus(process);
        return members.get(process) + (last.isEmpty() ? "" : " [last in: " + last + "]");
    }

    /** {@inheritDoc} */
    @Override
    public String lastStatus(int process) {
        return process == 0 ? local.status().get() : others.get(process).lastStatus();
    }

    /** The parts of the processes in the present exchange, at the master. */
    private static final class ExchangeRound {

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

        /**
         * Returns how the processes differ on what they exchange, or {@code null} if they agree.
         */
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
            byte[][] all =
                    parts.values().stream().map(part -> part.parts()[0]).toArray(byte[][]::new);
            parts.clear();
            number++;
            return all;
        }
    }
}
