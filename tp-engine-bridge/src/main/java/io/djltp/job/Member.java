package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.channel.socket.nio.NioSocketChannel;

import org.bouncycastle.tls.TlsClientProtocol;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.EOFException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.net.StandardSocketOptions;
import java.net.UnknownHostException;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import javax.net.ssl.SSLHandshakeException;

/**
 * Every process but the master: it dials until the master is there, and talks with the master
 * alone.
 */
final class Member extends ControlPlane {

    private static final Logger logger = LoggerFactory.getLogger(Member.class);

    private static final Duration VERDICT = Duration.ofSeconds(2);
    private static final Duration MARGIN = Duration.ofSeconds(5);
    private static final int MAX_MEMBER = 8192;
    private static final long MIN_PAUSE_MILLIS = 10;
    private static final long MAX_PAUSE_MILLIS = 250;
    private static final Duration ATTEMPT = Duration.ofSeconds(5);

    /**
     * The names of Slurm's nodes are there when its tasks start, or will never be. Java keeps it in
     * mind for 10 seconds that a name was not found.
     */
    private static final Duration SLURM_NAME = Duration.ofSeconds(11);

    private static final String UNREACHABLE =
            "see whether process 0 was started there, and MASTER_ADDR and MASTER_PORT are the same"
                    + " on all processes";

    private final long start = System.nanoTime(); // of all attempts, also after a connection
    // what the master says to the last hello; nothing, if it dropped the connection before that
    private volatile CompletableFuture<Optional<Message.Welcome>> answer =
            new CompletableFuture<>();
    private volatile @Nullable Link link; // to the master, once it was found
    private volatile String master = "process 0";
    private volatile boolean masterGone;
    private volatile @Nullable JobFailedException reported;
    private @Nullable String exchange; // on the thread of the connection alone

    Member(LaunchEnvironment environment, JobOptions options) {
        super(environment, options);
    }

    /**
     * {@inheritDoc} A process that the master's door has dropped before it was let in, for being
     * slow or among many strangers, comes again.
     *
     * @throws JobFailedException if the job does not come together
     */
    @Override
    Job join() throws InterruptedException {
        MasterAddress address = new MasterAddress(environment, options.secret, null);
        JobTls tls = address.tls();
        // the name may take long
        Hello own = Hello.own(environment, options, InetAddress.getLoopbackAddress());
        String place = null;
        Optional<Message.Welcome> said = Optional.empty();
        while (said.isEmpty()) {
            Link connection = dial(address, tls);
            int port = connection.channel.remoteAddress().getPort();
            place = " at " + ErrorTexts.address(address.host(), port);
            master = "process 0" + place;
            said = ask(connection, own);
        }
        Message.Welcome welcome = said.get();
        master = welcome.members().get(0) + place;
        Duration timeout = Duration.ofMillis(welcome.timeoutMillis());
        return new Job(
                environment.process(), welcome.members(), timeout, welcome.encryptData(), this);
    }

    /** Says who comes, and waits until the master says that all have come. */
    private Optional<Message.Welcome> ask(Link connection, Hello own) throws InterruptedException {
        boolean first = link == null;
        answer = new CompletableFuture<>();
        link = connection;
        if (first) {
            heartbeats.start(() -> List.of(begun(link)), this::silent);
        }
        connection.send(Message.Type.HELLO, own.at(connection.channel.localAddress().getAddress()));
        if (!connection.channel.isActive()) {
            ended(connection); // before it was known which link it is
        }
        // the master's own time-out comes first, and its error says more
        var said = state.await(answer, options.timeout.plus(MARGIN));
        if (said == null) {
            String text =
                    ("%s did not say within %s that all processes have come: see whether all were"
                                    + " started, or give a longer time-out")
                            .formatted(master, ErrorTexts.time(options.timeout));
            throw new JobFailedException(text, -1, -1, null);
        }
        return said;
    }

    /**
     * Connects to the master, again and again until it is there.
     *
     * @return the connection, on which both sides have proven that they know the secret
     * @throws JobFailedException with why the attempt that came closest failed
     */
    private Link dial(MasterAddress address, JobTls tls) throws InterruptedException {
        Duration timeout = options.timeout;
        IOException reason = null;
        boolean warned = false;
        for (long pause = MIN_PAUSE_MILLIS; ; pause = Math.min(MAX_PAUSE_MILLIS, 2 * pause)) {
            IOException closest = new SocketTimeoutException("no port");
            for (int port : environment.masterPorts()) {
                try {
                    return attempt(tls, port, left(timeout));
                } catch (IOException e) {
                    // an interrupt closes the channel, and would look like a failed attempt
                    if (Thread.interrupted()) {
                        throw new InterruptedException();
                    }
                    closest = weight(e) >= weight(closest) ? e : closest;
                }
            }
            reason = reason == null || weight(closest) >= weight(reason) ? closest : reason;
            if (reason instanceof SSLHandshakeException && !warned) {
                warned = true;
                logger.warn(
                        "Process {} was refused by process 0 at {} ({}), and tries again for {},"
                                + " because another job may have the port: {}",
                        environment.process(),
                        address.place(),
                        ErrorTexts.reason(reason),
                        ErrorTexts.time(timeout),
                        address.whyRefused());
            }
            boolean hopeless = address.isSlurm() && reason instanceof UnknownHostException;
            Duration patience =
                    hopeless && SLURM_NAME.compareTo(timeout) < 0 ? SLURM_NAME : timeout;
            if (left(patience) == 0) {
                throw unreachable(address, reason, patience);
            }
            TimeUnit.MILLISECONDS.sleep(Math.min(pause, left(patience)));
        }
    }

    /** Returns the milliseconds that are left of a time since the start. */
    private long left(Duration time) {
        return Math.max(0, time.minusNanos(System.nanoTime() - start).toMillis());
    }

    /** That the time was over says less than what an attempt before it found. */
    private static int weight(IOException e) {
        int known = e instanceof SSLHandshakeException ? 2 : 1;
        return e instanceof SocketTimeoutException ? 0 : known;
    }

    private JobFailedException unreachable(MasterAddress address, IOException e, Duration time) {
        boolean refused = e instanceof SSLHandshakeException;
        String remedy = e instanceof UnknownHostException ? address.unresolved() : UNREACHABLE;
        String text =
                "Process %d %s process 0 at %s %s %s (%s): %s"
                        .formatted(
                                environment.process(),
                                refused ? "was refused by" : "cannot reach",
                                address.place(),
                                refused ? "for" : "within",
                                ErrorTexts.time(time),
                                ErrorTexts.reason(e),
                                refused ? address.whyRefused() : remedy);
        return new JobFailedException(text, -1, -1, e);
    }

    private Link attempt(JobTls tls, int port, long left) throws IOException, InterruptedException {
        int millis = (int) Math.min(ATTEMPT.toMillis(), left);
        if (millis == 0) {
            throw new SocketTimeoutException("no answer in time");
        }
        // asks for the name anew each time: it may not be known yet
        InetSocketAddress address = new InetSocketAddress(environment.masterAddress(), port);
        if (address.isUnresolved()) {
            throw new UnknownHostException("unknown host " + environment.masterAddress());
        }
        SocketChannel channel = SocketChannel.open();
        Link shaken = null;
        try {
            channel.socket().connect(address, millis);
            if (channel.getLocalAddress().equals(channel.getRemoteAddress())) {
                // happens on loopback when the system gives out the very port that is dialled
                throw new SocketException("nobody listens");
            }
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            shaken = shake(channel, tls, millis);
            return shaken;
        } finally {
            if (shaken == null) {
                channel.close();
            }
        }
    }

    private Link shake(SocketChannel connected, JobTls tls, int millis)
            throws IOException, InterruptedException {
        JobTls.Handler handler = tls.new Handler(new TlsClientProtocol());
        NioSocketChannel channel = new NioSocketChannel(connected);
        channel.config().setAllocator(UnpooledByteBufAllocator.DEFAULT);
        long limit = (long) environment.processes() * (Job.MAX_EXCHANGE + MAX_MEMBER);
        Link shaken = new Link(channel, handler, limit, this);
        loop.serve(channel);
        try {
            handler.complete().get(millis, TimeUnit.MILLISECONDS);
            shaken.touch(); // what came in the handshake was heard, too
            return shaken;
        } catch (TimeoutException e) {
            throw new SocketTimeoutException("no answer in time");
        } catch (ExecutionException e) {
            if (handler.hasOtherKey()) {
                throw new SSLHandshakeException("it does not know the secret");
            }
            if (e.getCause() instanceof EOFException end) {
                throw end;
            }
            throw new IOException(
                    "what listens there is no process of a job, or has another version of this"
                            + " library",
                    e);
        }
    }

    /** {@inheritDoc} */
    @Override
    void begin(Message part) {
        exchange = part.content(Message.Turn.class).what();
        begun(link).send(part.encode());
        checkMaster();
    }

    private void checkMaster() {
        if (masterGone && exchange != null && !result.isDone()) {
            lost(" has ended and takes no part in '" + exchange + "'");
        }
    }

    /** {@inheritDoc} */
    @Override
    void fail(JobFailedException failure) {
        if (state.isOver()) {
            return;
        }
        // which failure was the first is the master's to say
        reported = failure;
        begun(link).send(Message.fail(failure).encode());
        if (!masterGone) {
            state.awaitFailure(VERDICT);
        }
        state.fail(failure);
    }

    /** {@inheritDoc} */
    @Override
    String lastStatus(int process) {
        return process == 0 ? begun(link).lastStatus() : "";
    }

    /** {@inheritDoc} */
    @Override
    void close() {
        Link.finish(List.of(begun(link)));
        end();
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
                heartbeats.setTimeout(Duration.ofMillis(said.heartbeatMillis()));
                answer.complete(Optional.of(said));
                break;
            case REFUSE:
                state.fail(new JobFailedException(message.content(String.class), -1, -1, null));
                break;
            case RESULT:
                result.complete(message.parts());
                break;
            case FAIL:
                JobFailedException verdict = message.failure();
                JobFailedException mine = reported;
                String text = verdict.getMessage();
                // what it threw itself has its stack trace
                state.fail(mine != null && mine.getMessage().equals(text) ? mine : verdict);
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

    private void silent(Link silent) {
        JobFailedException failure = lostMaster(silent.describeSilence(heartbeats.timeout()));
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
