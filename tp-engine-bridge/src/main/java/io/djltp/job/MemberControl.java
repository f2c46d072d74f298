package io.djltp.job;

import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;

/** The control of every process but the master: it talks with the master alone. */
final class MemberControl implements Control, Link.Events {

    private static final Duration VERDICT = Duration.ofSeconds(2);
    private static final long MARGIN_NANOS = TimeUnit.SECONDS.toNanos(5);

    private volatile String address = "";
    private final JobOptions options;
    private final JobState state;
    private final Status status;
    private final AtomicReference<byte[][]> result = new AtomicReference<>();
    private volatile Welcome welcome;
    private volatile boolean masterGone;
    private volatile JobFailedException reported;
    private volatile Link link; // to the master, once it was found
    private volatile Link dropped; // the last that ended before the master had said anything
    private Heartbeats heartbeats;
    private long sent;

    /**
     * Creates a control.
     *
     * @param options what the processes agree on
     * @param state the state of the job
     * @param status what this process tells with its heartbeats
     */
    MemberControl(JobOptions options, JobState state, Status status) {
        this.options = options;
        this.state = state;
        this.status = status;
    }

    /**
     * Waits until the master says that all have come.
     *
     * @param connection the link to the master
     * @param place where the master listens, in words
     * @param own what this process says of itself
     * @return what the master said; {@code null} if it closed the connection before it had let this
     *     process in, which may come again
     * @throws JobFailedException if the job does not come together
     */
    Welcome join(Link connection, String place, Hello own) throws InterruptedException {
        link = connection;
        address = place;
        if (heartbeats == null) {
            heartbeats =
                    new Heartbeats(
                            link.channel().eventLoop(),
                            () -> List.of(link),
                            status::get,
                            this::silent);
            heartbeats.start(options.getHeartbeatTimeout());
        }
        link.send(new Message(Message.Type.HELLO, own));
        if (!link.channel().isActive()) {
            ended(link, null); // before it was known which link it is
        }
        // the master's own time-out comes first, and its error says more
        Duration timeout = options.getTimeout();
        long deadline = System.nanoTime() + timeout.toNanos() + MARGIN_NANOS;
        Optional<Welcome> said = state.await(() -> answer(connection), deadline);
        if (said == null) {
            String text =
                    ("%s did not say within %s that all processes have come: see whether all were"
                                    + " started, or give a longer time-out")
                            .formatted(master(), Texts.time(timeout));
            throw new JobFailedException(text, -1, -1, null);
        }
        said.ifPresent(all -> status.setHeartbeatTimeout(all.heartbeatTimeout()));
        return said.orElse(null);
    }

    private Optional<Welcome> answer(Link connection) {
        Welcome said = welcome;
        return said == null && dropped != connection ? null : Optional.ofNullable(said);
    }

    /** {@inheritDoc} */
    @Override
    public byte[][] exchange(String what, byte[] mine) throws InterruptedException {
        link.send(new Message(Message.Type.EXCHANGE, new Message.Turn(sent++, what), mine));
        // the master ends the wait in time; the margin is for one that does not
        long timeout = welcome.timeout().plus(welcome.heartbeatTimeout()).toNanos();
        long deadline = System.nanoTime() + timeout + MARGIN_NANOS;
        byte[][] all = state.await(() -> takeResult(what), deadline);
        if (all == null) {
            lost("; it has not ended the exchange '" + what + "'");
            state.check();
        }
        return all;
    }

    /** {@inheritDoc} */
    @Override
    public void fail(JobFailedException failure) {
        if (state.isOver()) {
            return;
        }
        // which failure was the first is the master's to say
        reported = failure;
        link.send(Message.fail(failure));
        if (!masterGone) {
            state.awaitFailure(VERDICT);
        }
        state.fail(failure);
    }

    /** {@inheritDoc} */
    @Override
    public void setStatus(Supplier<String> supplier) {
        status.set(supplier);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        link.finish();
        link.close(System.nanoTime() + Registration.END_NANOS);
    }

    /** {@inheritDoc} Of links that did not lead to the master, nothing is heard. */
    @Override
    public void received(Link from, Message message) throws IOException {
        if (from != link) {
            throw new IOException("a message before the hello");
        }
        switch (message.type()) {
            case WELCOME:
                welcome = message.content(Welcome.class);
                heartbeats.setTimeout(welcome.heartbeatTimeout());
                state.changed();
                break;
            case REFUSE:
                state.fail(new JobFailedException(message.content(String.class), -1, -1, null));
                break;
            case RESULT:
                result.set(message.parts());
                state.changed();
                break;
            case FAIL:
                state.fail(verdict(message.failure()));
                break;
            case GOODBYE:
                masterGone = true;
                state.changed();
                break;
            default:
                throw new IOException("a message for the master: " + message.type());
        }
    }

    /** {@inheritDoc} */
    @Override
    public void ended(Link from, String error) {
        if (from == link && !from.hasSpoken() && error == null) {
            dropped = from;
            state.changed();
        } else if (from == link && !masterGone) {
            lost(error == null ? " ended without a word" : " sent what it must not: " + error);
        }
    }

    // what this process threw itself is kept with its stack trace
    private JobFailedException verdict(JobFailedException said) {
        JobFailedException mine = reported;
        return mine != null && mine.getMessage().equals(said.getMessage()) ? mine : said;
    }

    private byte[][] takeResult(String what) {
        byte[][] all = result.getAndSet(null);
        if (all == null && masterGone) {
            lost(" has ended and takes no part in '" + what + "'");
        }
        return all;
    }

    private void silent(Link silent) {
        Duration timeout =
                welcome == null ? options.getHeartbeatTimeout() : welcome.heartbeatTimeout();
        String last = link.lastStatus();
        String text =
                " has not been heard for "
                        + Texts.time(timeout)
                        + (last.isEmpty() ? "" : "; it was last in: " + last);
        JobFailedException failure = lostMaster(text);
        // for a master that stood still and goes on: it must find that it was given up
        state.fail(failure, () -> link.send(Message.fail(failure)));
    }

    private void lost(String what) {
        state.fail(lostMaster(what));
    }

    private JobFailedException lostMaster(String what) {
        return new JobFailedException(master() + what, 0, -1, null);
    }

    private String master() {
        Welcome said = welcome;
        String who = said == null ? "process 0" : said.members().get(0).member().toString();
        return who + " at " + address;
    }
}
