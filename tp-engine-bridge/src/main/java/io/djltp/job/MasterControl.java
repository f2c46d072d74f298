package io.djltp.job;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;

/** The control of process 0: it hears all others, and tells all what one says. */
final class MasterControl implements Control, Link.Events {

    private static final long MARGIN_NANOS = TimeUnit.SECONDS.toNanos(10);
    private static final String WAITED_IN_VAIN = "time-out after"; // as the backends say it
    private static final int MAX_TEXT = 8 * 1024;

    private final List<JobMember> members;
    private final Link[] links;
    private final JobState state;
    private final Status status;
    private final MemberAcceptor acceptor;
    private final Duration timeout;
    private final Duration heartbeatTimeout;
    private final ExchangeRound round;
    private final boolean[] gone;
    private final AtomicReference<byte[][]> result = new AtomicReference<>();
    private long sent;

    MasterControl(
            List<JobMember> members,
            Link[] links,
            JobOptions options,
            JobState state,
            Status status,
            MemberAcceptor acceptor) {
        this.members = members;
        this.links = links;
        this.state = state;
        this.status = status;
        this.acceptor = acceptor;
        timeout = options.getTimeout();
        heartbeatTimeout = options.getHeartbeatTimeout();
        round = new ExchangeRound(members);
        gone = new boolean[members.size()];
    }

    void start() {
        status.setHeartbeatTimeout(heartbeatTimeout);
        new HeartbeatMonitor(
                        others(), heartbeatTimeout, state::isOver, this::silent, this::checkRound)
                .start();
    }

    /** {@inheritDoc} */
    @Override
    public byte[][] exchange(String what, byte[] mine) throws InterruptedException {
        try {
            synchronized (round) {
                round.arrive(0, sent++, what, mine);
                advance();
            }
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
        // the monitor ends the wait in time; the margin is for one that has ended itself
        long deadline = System.nanoTime() + timeout.toNanos() + MARGIN_NANOS;
        byte[][] all = state.await(() -> result.getAndSet(null), deadline);
        if (all == null) {
            checkRound();
            state.check();
            throw new IllegalStateException("The exchange '" + what + "' has lost its end");
        }
        return all;
    }

    /** {@inheritDoc} */
    @Override
    public void fail(JobFailedException failure) {
        JobFailedException told = withWhereabouts(failure);
        Message message = Message.fail(told);
        state.fail(told, () -> others().forEach(link -> link.send(message)));
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
        List<Link> others = others();
        for (Link link : others) {
            link.send(Message.goodbye());
            link.finish();
        }
        long deadline = System.nanoTime() + Registration.END_NANOS;
        others.forEach(link -> link.close(deadline));
        acceptor.close();
    }

    /** {@inheritDoc} */
    @Override
    public void received(Link link, Message message) throws IOException {
        switch (message.type()) {
            case EXCHANGE:
                synchronized (round) {
                    round.decodePart(link.process(), message);
                    advance();
                }
                break;
            case FAIL:
                fail(message.failure());
                break;
            case GOODBYE:
                synchronized (round) {
                    gone[link.process()] = true;
                    advance();
                }
                link.finish();
                break;
            default:
                throw new IOException("a message of the master's own: " + message.type());
        }
    }

    /** {@inheritDoc} */
    @Override
    public void ended(Link link, String error) {
        boolean expected;
        synchronized (round) {
            expected = gone[link.process()];
        }
        if (!expected) {
            declare(
                    link.process(),
                    error == null ? " ended without a word" : " sent what it must not: " + error);
        }
    }

    private void silent(Link link) {
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
            Message message = ExchangeRound.encodeResult(all);
            others().forEach(link -> link.send(message));
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
        synchronized (round) {
            if (round.waitsLonger(timeout.toNanos())) {
                TreeSet<Integer> missing = round.missing();
                List<String> texts = new ArrayList<>();
                for (int process : missing) {
                    texts.add(describeLast(process));
                }
                String text =
                        "%s did not come to the exchange '%s' within %s"
                                .formatted(
                                        String.join(", ", texts),
                                        round.name(),
                                        Texts.time(timeout));
                int one = missing.size() == 1 ? missing.first() : -1;
                fail(new JobFailedException(text, one, -1, null));
            }
        }
    }

    private String describeLast(int process) {
        String last = lastStatus(process);
        return members.get(process) + (last.isEmpty() ? "" : " [last in: " + last + "]");
    }

    private String lastStatus(int process) {
        return process == 0 ? status.get() : links[process].lastStatus();
    }

    private List<Link> others() {
        return Arrays.asList(links).subList(1, links.length);
    }
}
