package io.djltp.job;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/** The control of every process but the master: it talks with the master alone. */
final class MemberControl implements ControlPlane, Link.Events {

    private static final Duration VERDICT = Duration.ofSeconds(2);
    private static final Duration MARGIN = Duration.ofSeconds(5);

    private static final int MAX_MEMBER = 8192;

    private final JobContext local;
    private final JobState state;
    // what the master says to the last hello; nothing, if it dropped the connection before that
    private volatile CompletableFuture<Optional<Message.Welcome>> answer;
    private volatile Link link; // to the master, once it was found
    private volatile String master = "process 0";
    private String place = ""; // of the master
    private volatile boolean masterGone;
    private volatile JobFailedException reported;
    private Heartbeats heartbeats;
    private Duration heartbeatTimeout;
    // of the exchange; on the thread of the connection alone
    private CompletableFuture<byte[][]> result = new CompletableFuture<>();
    private String exchange;
    private long sent;

    MemberControl(JobContext local) {
        this.local = local;
        state = local.state();
        heartbeatTimeout = local.options().getHeartbeatTimeout();
    }

    /**
     * Finds the master, and waits until it says that all have come. A process that the master's
     * door has dropped before it was let in, for being slow or among many strangers, comes again.
     *
     * @param rendezvous where it is
     * @return what the master said
     * @throws JobFailedException if the job does not come together
     */
    Message.Welcome join(MasterAddress rendezvous) throws InterruptedException {
        long limit = (long) local.environment().processes() * (Job.MAX_EXCHANGE + MAX_MEMBER);
        Dialer dialer = new Dialer(local, rendezvous, limit, this);
        Hello own = Hello.own(local, InetAddress.getLoopbackAddress()); // the name may take long
        Optional<Message.Welcome> said;
        do {
            said = ask(dialer.dial(), own);
        } while (said.isEmpty());
        master = said.get().members().get(0) + place;
        return said.get();
    }

    private Optional<Message.Welcome> ask(Link connection, Hello own) throws InterruptedException {
        answer = new CompletableFuture<>();
        link = connection;
        InetSocketAddress there = link.channel().remoteAddress();
        place = " at " + ErrorTexts.address(local.environment().masterAddress(), there.getPort());
        master = "process 0" + place;
        if (heartbeats == null) {
            heartbeats = new Heartbeats(local, () -> List.of(link), this::silent);
            heartbeats.start();
        }
        link.send(Message.Type.HELLO, own.at(link.channel().localAddress().getAddress()));
        if (!link.channel().isActive()) {
            ended(link); // before it was known which link it is
        }
        // the master's own time-out comes first, and its error says more
        var said = state.await(answer, local.options().getTimeout().plus(MARGIN));
        if (said == null) {
            String text =
                    ("%s did not say within %s that all processes have come: see whether all were"
                                    + " started, or give a longer time-out")
                            .formatted(master, ErrorTexts.time(local.options().getTimeout()));
            throw new JobFailedException(text, -1, -1, null);
        }
        return said;
    }

    /** {@inheritDoc} */
    @Override
    public CompletableFuture<byte[][]> exchange(String what, byte[] mine) {
        CompletableFuture<byte[][]> all = new CompletableFuture<>();
        link.channel()
                .eventLoop()
                .execute(
                        () -> {
                            result = all;
                            exchange = what;
                            Message.Turn turn = new Message.Turn(sent++, what);
                            link.send(Message.Type.EXCHANGE, turn, mine);
                            checkMaster();
                        });
        return all;
    }

    private void checkMaster() {
        if (masterGone && exchange != null && !result.isDone()) {
            lost(" has ended and takes no part in '" + exchange + "'");
        }
    }

    /** {@inheritDoc} */
    @Override
    public void fail(JobFailedException failure) {
        if (state.isOver()) {
            return;
        }
        // which failure was the first is the master's to say
        reported = failure;
        link.send(Message.fail(failure).encode());
        if (!masterGone) {
            state.awaitFailure(VERDICT);
        }
        state.fail(failure);
    }

    /** {@inheritDoc} */
    @Override
    public String lastStatus(int process) {
        return process == 0 ? link.lastStatus() : "";
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        Link.finish(List.of(link));
    }

    /** {@inheritDoc} Of links that did not lead to the master, nothing is heard. */
    @Override
    public void received(Link from, Message message) throws IOException {
        if (from != link) {
            throw new IOException("a message before the hello");
        }
        switch (message.type()) {
            case WELCOME:
                Message.Welcome said = message.content(Message.Welcome.class);
                heartbeatTimeout = Duration.ofMillis(said.heartbeatMillis());
                heartbeats.setTimeout(heartbeatTimeout);
                answer.complete(Optional.of(said));
                break;
            case REFUSE:
                state.fail(new JobFailedException(message.content(String.class), -1, -1, null));
                break;
            case RESULT:
                result.complete(message.parts());
                break;
            case FAIL:
                state.fail(verdict(message.failure()));
                break;
            case GOODBYE:
                masterGone = true;
                checkMaster();
                break;
            default:
                throw new IOException("a message for the master: " + message.type());
        }
    }

    /** {@inheritDoc} */
    @Override
    public void ended(Link from) {
        if (from == link && from.isUnheard()) {
            answer.complete(Optional.empty());
        } else if (from == link && !masterGone) {
            lost(from.describeEnd());
        }
    }

    // what this process threw itself is kept with its stack trace
    private JobFailedException verdict(JobFailedException said) {
        JobFailedException mine = reported;
        return mine != null && mine.getMessage().equals(said.getMessage()) ? mine : said;
    }

    private void silent(Link silent) {
        JobFailedException failure = lostMaster(silent.describeSilence(heartbeatTimeout));
        // for a master that stood still and goes on: it must find that it was given up
        state.fail(failure, () -> silent.send(Message.fail(failure).encode()));
    }

    private void lost(String what) {
        state.fail(lostMaster(what));
    }

    private JobFailedException lostMaster(String what) {
        return new JobFailedException(master + what, 0, -1, null);
    }
}
