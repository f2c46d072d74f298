package io.djltp.job;

import io.netty.channel.EventLoop;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;

/**
 * The control of process 0: it hears all others, and tells all what one says. The exchange and who
 * has gone are known on the thread of the connections alone.
 */
final class MasterControl implements Control, Link.Events {

    private static final long MARGIN_NANOS = TimeUnit.SECONDS.toNanos(10);
    private static final String WAITED_IN_VAIN = "time-out after"; // as the backends say it
    private static final long MAX_TICK_MILLIS = 500;
    private static final int MAX_TEXT = 8 * 1024;

    private final List<JobMember> members;
    private final List<Link> others;
    private final EventLoop loop;
    private final JobState state;
    private final Status status;
    private final Duration timeout;
    private final Duration heartbeatTimeout;
    private final ExchangeRound round;
    private final boolean[] gone;
    private final AtomicReference<byte[][]> result = new AtomicReference<>();
    private long sent;

    /**
     * Creates a control.
     *
     * @param members all processes
     * @param others the links to all but this one, in their order
     * @param loop the thread of the connections
     * @param options what the processes agree on
     * @param state the state of the job
     * @param status what this process is doing
     */
    MasterControl(
            List<JobMember> members,
            List<Link> others,
            EventLoop loop,
            JobOptions options,
            JobState state,
            Status status) {
        this.members = members;
        this.others = others;
        this.loop = loop;
        this.state = state;
        this.status = status;
        timeout = options.getTimeout();
        heartbeatTimeout = options.getHeartbeatTimeout();
        round = new ExchangeRound(members);
        gone = new boolean[members.size()];
        others.forEach(link -> link.is(link.process(), this));
        long tick = Math.max(1, Math.min(MAX_TICK_MILLIS, timeout.toMillis() / 8));
        loop.scheduleWithFixedDelay(this::checkRound, tick, tick, TimeUnit.MILLISECONDS);
    }

    List<JobMember> members() {
        return members;
    }

    /** {@inheritDoc} */
    @Override
    public byte[][] exchange(String what, byte[] mine) throws InterruptedException {
        loop.execute(() -> arrive(new Message.Turn(sent++, what), mine));
        // the regular look ends the wait in time; the margin is for one that has ended itself
        long deadline = System.nanoTime() + timeout.toNanos() + MARGIN_NANOS;
        byte[][] all = state.await(() -> result.getAndSet(null), deadline);
        if (all == null) {
            state.check();
            throw new IllegalStateException("The exchange '" + what + "' has lost its end");
        }
        return all;
    }

    private void arrive(Message.Turn turn, byte[] mine) {
        try {
            round.arrive(0, turn.round(), turn.what(), mine);
            advance();
        } catch (IOException e) {
            declare(0, " has lost its turn: " + e.getMessage());
        }
    }

    /** {@inheritDoc} */
    @Override
    public void fail(JobFailedException failure) {
        JobFailedException told = withWhereabouts(failure);
        byte[] message = Message.fail(told).encode();
        state.fail(told, () -> others.forEach(link -> link.send(message)));
    }

    /** Of a rank that waited in vain, the error says where the others are: only process 0 knows. */
    private JobFailedException withWhereabouts(JobFailedException failure) {
        if (!failure.getMessage().contains(WAITED_IN_VAIN)) {
            return failure;
        }
        List<String> places = new ArrayList<>();
        for (JobMember member : members) {
            String last = lastStatus(member.process());
            if (member.process() != failure.getProcess() && !last.isEmpty()) {
                places.add(last);
            }
        }
        String text = failure.getMessage() + ". Meanwhile: " + String.join("; ", places);
        return places.isEmpty()
                ? failure
                : new JobFailedException(
                        Texts.cut(text, MAX_TEXT),
                        failure.getProcess(),
                        failure.getRank(),
                        failure.getCause());
    }

    /** {@inheritDoc} */
    @Override
    public void setStatus(Supplier<String> supplier) {
        status.set(supplier);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        others.forEach(Link::finish);
        long deadline = System.nanoTime() + Registration.END_NANOS;
        others.forEach(link -> link.close(deadline));
    }

    /** {@inheritDoc} */
    @Override
    public void received(Link link, Message message) throws IOException {
        switch (message.type()) {
            case EXCHANGE:
                Message.Turn turn = message.content(Message.Turn.class);
                byte[] part = message.parts().length == 1 ? message.parts()[0] : null;
                round.arrive(link.process(), turn.round(), turn.what(), part);
                advance();
                break;
            case FAIL:
                fail(message.failure());
                break;
            case GOODBYE:
                gone[link.process()] = true;
                advance();
                break;
            default:
                throw new IOException("a message of the master's own: " + message.type());
        }
    }

    /** {@inheritDoc} */
    @Override
    public void ended(Link link, String error) {
        if (!gone[link.process()]) {
            declare(
                    link.process(),
                    error == null ? " ended without a word" : " sent what it must not: " + error);
        }
    }

    /** Notes that a process has not been heard for too long. */
    void silent(Link link) {
        String last = link.lastStatus();
        declare(
                link.process(),
                " has not been heard for "
                        + Texts.time(heartbeatTimeout)
                        + (last.isEmpty() ? "" : "; it was last in: " + last));
    }

    private void declare(int process, String what) {
        fail(new JobFailedException(members.get(process) + what, process, -1, null));
    }

    /** Ends the exchange if all have come, or if one can come no more. */
    private void advance() {
        if (round.isComplete()) {
            String disagreement = round.disagreement();
            if (disagreement != null) {
                fail(new JobFailedException(disagreement, -1, -1, null));
                return;
            }
            byte[][] all = round.finish();
            byte[] message = new Message(Message.Type.RESULT, "", all).encode();
            others.forEach(link -> link.send(message));
            result.set(all);
            state.changed();
        } else if (round.name() != null) {
            for (int i = 0; i < gone.length; i++) {
                if (gone[i] && !round.hasArrived(i)) {
                    declare(i, " has ended and takes no part in '" + round.name() + "'");
                }
            }
        }
    }

    private void checkRound() {
        if (round.waitsLonger(timeout.toNanos())) {
            TreeSet<Integer> missing = round.missing();
            List<String> texts = new ArrayList<>();
            for (int process : missing) {
                texts.add(describeLast(process));
            }
            String text =
                    "%s did not come to the exchange '%s' within %s"
                            .formatted(String.join(", ", texts), round.name(), Texts.time(timeout));
            int one = missing.size() == 1 ? missing.first() : -1;
            fail(new JobFailedException(text, one, -1, null));
        }
    }

    private String describeLast(int process) {
        String last = lastStatus(process);
        return members.get(process) + (last.isEmpty() ? "" : " [last in: " + last + "]");
    }

    private String lastStatus(int process) {
        return process == 0 ? status.get() : others.get(process - 1).lastStatus();
    }
}
