package io.djltp.job;

import static java.util.stream.Collectors.joining;

import io.djltp.environment.LaunchEnvironment;
import io.netty.util.concurrent.Future;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.IntFunction;
import java.util.stream.IntStream;

/**
 * Process 0. First it waits for all others, and checks that they fit together: one that ends while
 * others are awaited may come again, and the first that does not fit ends the job for all that have
 * come. Then it hears all, and tells all what one says.
 *
 * <p>What it knows of the others is known on the thread of the connections.
 */
final class Master extends ControlPlane {

    private static final Logger logger = LoggerFactory.getLogger(Master.class);
    private static final String WAITED_IN_VAIN = "time-out after"; // as the backends say it
    private static final String NOT_COME =
            "%s did not come to the exchange '%s' within %s: see whether its program has gone"
                    + " another way or has returned, or give the job a longer time-out";
    private static final String NOT_HEARD =
            "%s. The exchange '%s' has waited for it for %s: see whether its process was stopped,"
                    + " or cannot be reached any more";
    private static final String MISSING =
            "%s of %d did not come to %s within %s%s: see whether each was started, reaches"
                    + " MASTER_ADDR:MASTER_PORT and has the same TP_SECRET, or give a longer"
                    + " time-out";
    private static final int MAX_TEXT = 8 * 1024;
    private static final long MAX_MESSAGE = Job.MAX_EXCHANGE + 64 * 1024;

    private final Duration timeout;
    private @Nullable ServerSocketChannel server;
    private @Nullable Hello own;
    private final Door door = new Door();

    // until all have come: why they do not make a job, or null if they do
    private final CompletableFuture<@Nullable String> outcome = new CompletableFuture<>();
    private final SortedMap<Integer, Link> others = new TreeMap<>();
    private final SortedSet<Integer> lost = new TreeSet<>();
    private final List<Link> misfits = new ArrayList<>();

    // then
    private List<JobMember> members = List.of();
    private boolean encryptsData;
    private final Set<Integer> gone = new TreeSet<>();
    private final SortedMap<Integer, Message> parts = new TreeMap<>(); // of the present exchange
    private @Nullable Future<?> alarm; // of the exchange
    private long exchanges;

    Master(LaunchEnvironment environment, JobOptions options, @Nullable ServerSocketChannel bound) {
        super(environment, options);
        server = bound;
        timeout = options.timeout;
    }

    /**
     * {@inheritDoc}
     *
     * @throws JobFailedException if they do not make a job, which those that have come are told
     */
    @Override
    Job join() throws IOException, InterruptedException {
        if (environment.processes() == 1) {
            closeServer();
            own = Hello.own(environment, options, InetAddress.getLoopbackAddress());
            members = List.of(own.member());
            encryptsData = Boolean.TRUE.equals(options.encryptData);
            return new Job(0, members, timeout, encryptsData, this);
        }
        MasterAddress address = new MasterAddress(environment, options.secret, server);
        server = address.listen();
        logger.info(
                "Waiting for {} at {}",
                ErrorTexts.count(environment.processes() - 1, "process", "processes"),
                ErrorTexts.address((InetSocketAddress) server.getLocalAddress()));
        own = Hello.own(environment, options, server.socket().getInetAddress());
        door.open(loop, server, address.tls(), MAX_MESSAGE, this);
        heartbeats.start(this::links, this::silent);
        loop.schedule(timeout, () -> refuse(describeMissing()));
        try {
            String refusal = outcome.get();
            if (refusal == null) {
                return new Job(0, members, timeout, encryptsData, this);
            }
            Link.finish(links());
            String note = " (%d attempts had another secret)".formatted(door.wrongKeys());
            throw new JobFailedException(
                    refusal + (door.wrongKeys() == 0 ? "" : note), -1, -1, null);
        } catch (InterruptedException e) {
            String text = "process 0 was interrupted while it waited for the others";
            loop.execute(() -> refuse(text));
            outcome.join();
            Link.finish(links());
            throw e;
        } catch (ExecutionException e) {
            throw new IllegalStateException(e);
        }
    }

    private Collection<Link> links() {
        List<Link> links = new ArrayList<>(others.values());
        links.addAll(misfits);
        return links;
    }

    private boolean isMember(Link link) {
        return !members.isEmpty() && others.containsValue(link);
    }

    /** Tells all that have come why there is no job. */
    private void refuse(String reason) {
        if (!outcome.isDone()) {
            links().forEach(link -> turnAway(link, reason));
            outcome.complete(reason);
        }
    }

    private static void turnAway(Link link, String reason) {
        link.send(Message.Type.REFUSE, reason);
        link.finish();
    }

    /** {@inheritDoc} */
    @Override
    public void received(Link link, Message message) throws IOException {
        switch (message.type()) {
            case HELLO:
                if (link.hello != null) {
                    throw new IOException("a second hello");
                }
                link.hello = message.content(Hello.class);
                arrive(link, begun(link.hello));
                return;
            case EXCHANGE:
            case FAIL:
                if (!isMember(link)) {
                    throw new IOException("a message before all had come: " + message.type());
                }
                if (message.type() == Message.Type.FAIL) {
                    fail(message.failure());
                } else {
                    arrive(begun(link.hello).process(), message);
                }
                return;
            case GOODBYE:
                if (isMember(link)) {
                    gone.add(begun(link.hello).process());
                    advance();
                }
                return;
            default:
                throw new IOException("a message of the master's own: " + message.type());
        }
    }

    private void arrive(Link link, Hello hello) {
        if (outcome.isDone()) {
            // it alone, without harm to the job that runs
            String complete =
                    ("%s came to %s, whose job is already complete: end the old job first, or set"
                                    + " another MASTER_PORT")
                            .formatted(hello.who(), begun(own).who());
            turnAway(link, outcome.join() == null ? complete : outcome.join());
            return;
        }
        door.letIn(link.channel);
        link.send(Message.Type.HEARTBEAT, ""); // so that it knows
        Link old = others.get(hello.process());
        Hello self = begun(own);
        String mismatch = self.mismatch(hello, old == null ? self : begun(old.hello));
        if (mismatch != null) {
            misfits.add(link);
            refuse(mismatch);
            return;
        }
        others.put(hello.process(), link);
        if (old != null) {
            old.channel.close();
        }
        if (missing().isEmpty()) {
            start();
        }
    }

    private void start() {
        List<JobMember> all = new ArrayList<>(List.of(begun(own).member()));
        others.values().forEach(link -> all.add(begun(link.hello).member()));
        members = List.copyOf(all);
        encryptsData = wantsEncryption();
        for (Link link : others.values()) {
            // it reaches the master's ranks where it reached the master
            all.set(0, begun(own).at(link.channel.localAddress().getAddress()).member());
            link.touch();
            link.send(Message.Type.WELCOME, Message.welcome(options, encryptsData, all));
        }
        outcome.complete(null);
    }

    /** Returns whether one wants data encrypted, or does not say while others may read it. */
    private boolean wantsEncryption() {
        List<Hello> all = new ArrayList<>(List.of(begun(own)));
        others.values().forEach(link -> all.add(begun(link.hello)));
        boolean isLocal =
                others.values().stream()
                        .allMatch(it -> it.channel.localAddress().getAddress().isLoopbackAddress());
        return all.stream()
                .map(Hello::encryptData)
                .anyMatch(wanted -> wanted == null ? !isLocal : wanted);
    }

    /** {@inheritDoc} */
    @Override
    public void ended(Link link) {
        if (isMember(link)) {
            int process = begun(link.hello).process();
            if (!gone.contains(process)) {
                declare(process, link.describeEnd());
            }
        } else if (link.hello != null
                && !outcome.isDone()
                && others.remove(link.hello.process(), link)) {
            lost.add(link.hello.process());
        }
    }

    private void silent(Link link) {
        if (isMember(link)) {
            declare(begun(link.hello).process(), link.describeSilence(heartbeats.timeout()));
        }
    }

    private SortedSet<Integer> missing() {
        SortedSet<Integer> missing = new TreeSet<>();
        IntStream.range(1, environment.processes()).forEach(missing::add);
        missing.removeAll(others.keySet());
        return missing;
    }

    private String describeMissing() {
        SortedSet<Integer> again = missing();
        again.retainAll(lost);
        String ended = " (" + ErrorTexts.processes(again) + " came, but ended again)";
        return MISSING.formatted(
                ErrorTexts.processes(missing()),
                environment.processes(),
                begun(own).who(),
                ErrorTexts.time(timeout),
                again.isEmpty() ? "" : ended);
    }

    /** {@inheritDoc} */
    @Override
    void begin(Message part) {
        try {
            arrive(0, part);
        } catch (IOException e) {
            declare(0, " has lost its turn: " + e.getMessage());
        }
    }

    /** Takes a process's part of the exchange. */
    private void arrive(int process, Message part) throws IOException {
        long turn = part.content(Message.Turn.class).round();
        if (turn != exchanges
                || part.parts().length != 1
                || parts.putIfAbsent(process, part) != null) {
            throw new IOException("its part of exchange " + turn + " in exchange " + exchanges);
        }
        if (parts.size() == 1) {
            alarm = loop.schedule(timeout, this::tooLate);
        }
        advance();
    }

    /** Ends the exchange if all have come, or if one can come no more. */
    private void advance() {
        if (parts.isEmpty()) {
            return;
        }
        if (parts.size() < members.size()) {
            String text = " has ended and takes no part in '" + exchangeOf(parts.firstKey()) + "'";
            notInExchange().filter(gone::contains).forEach(it -> declare(it, text));
            return;
        }
        begun(alarm).cancel(false);
        for (int i = 1; i < members.size(); i++) {
            if (!exchangeOf(i).equals(exchangeOf(0))) {
                String disagreement =
                        ("%s is in the exchange '%s', but %s in '%s': call the same on all"
                                        + " processes, in the same order and one thread")
                                .formatted(
                                        members.get(0),
                                        exchangeOf(0),
                                        members.get(i),
                                        exchangeOf(i));
                fail(new JobFailedException(disagreement, -1, -1, null));
                return;
            }
        }
        byte[][] all = parts.values().stream().map(part -> part.parts()[0]).toArray(byte[][]::new);
        parts.clear();
        exchanges++;
        byte[] message = new Message(Message.Type.RESULT, "", all).encode();
        others.values().forEach(link -> link.send(message));
        result.complete(all);
    }

    /** Returns the name that a process that has come has for the exchange. */
    private String exchangeOf(int process) {
        return begun(parts.get(process)).content(Message.Turn.class).what();
    }

    private IntStream notInExchange() {
        return IntStream.range(0, members.size()).filter(process -> !parts.containsKey(process));
    }

    /** Of those who have not come, who is not heard any more is the cause: it is not elsewhere. */
    private void tooLate() {
        long now = System.nanoTime();
        long nanos = heartbeats.several();
        int[] missing = notInExchange().toArray();
        int[] silent =
                IntStream.of(missing)
                        .filter(it -> it != 0 && begun(others.get(it)).isSilent(now, nanos))
                        .toArray();
        fail(
                silent.length == 0
                        ? late(missing, this::describeLast, NOT_COME)
                        : late(silent, this::describeSilence, NOT_HEARD));
    }

    private JobFailedException late(int[] processes, IntFunction<String> describe, String text) {
        String who = IntStream.of(processes).mapToObj(describe).collect(joining(", "));
        String what = exchangeOf(parts.firstKey());
        int one = processes.length == 1 ? processes[0] : -1;
        return new JobFailedException(
                text.formatted(who, what, ErrorTexts.time(timeout)), one, -1, null);
    }

    private String describeSilence(int process) {
        Link link = begun(others.get(process));
        return members.get(process) + link.describeSilence(link.silence());
    }

    private String describeLast(int process) {
        String last = lastStatus(process);
        return members.get(process) + (last.isEmpty() ? "" : " [last in: " + last + "]");
    }

    private void declare(int process, String what) {
        fail(new JobFailedException(members.get(process) + what, process, -1, null));
    }

    /** {@inheritDoc} */
    @Override
    void fail(JobFailedException failure) {
        JobFailedException told = withWhereabouts(failure);
        byte[] message = Message.fail(told).encode();
        state.fail(told, () -> others.values().forEach(link -> link.send(message)));
    }

    /** Of a rank that waited in vain, the error says where the others are: only process 0 knows. */
    private JobFailedException withWhereabouts(JobFailedException failure) {
        if (!failure.getMessage().contains(WAITED_IN_VAIN)) {
            return failure;
        }
        String places =
                IntStream.range(0, members.size())
                        .filter(process -> process != failure.getProcess())
                        .mapToObj(this::lastStatus)
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
    String lastStatus(int process) {
        return process == 0 ? heartbeats.status() : begun(others.get(process)).lastStatus();
    }

    /** {@inheritDoc} */
    @Override
    void close() {
        Link.finish(others.values());
        end();
    }

    /** {@inheritDoc} */
    @Override
    void end() {
        super.end();
        closeServer();
    }

    private void closeServer() {
        try {
            if (server != null) {
                server.close();
            }
        } catch (IOException e) {
            logger.debug("The port of process 0 cannot be closed", e);
        }
    }
}
