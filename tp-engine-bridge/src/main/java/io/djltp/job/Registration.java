package io.djltp.job;

import java.io.IOException;
import java.nio.channels.ServerSocketChannel;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/**
 * How the processes come to the master: it waits for all, and checks that they fit together.
 *
 * <p>A process that ends while others are awaited may come again. The first that does not fit ends
 * the job for all that have come. Runs on the thread of the job's connections.
 */
final class Registration implements Link.Events {

    private static final long MAX_MESSAGE = Job.MAX_EXCHANGE + 64 * 1024;

    private final JobContext local;
    private final Hello own;
    private final Door door;
    private final SortedMap<Integer, Link> come = new TreeMap<>();
    private final SortedSet<Integer> lost = new TreeSet<>();
    private final List<Link> misfits = new ArrayList<>();
    // why they do not make a job, or null if they do
    private final CompletableFuture<String> outcome = new CompletableFuture<>();
    private MasterControl control;

    /**
     * Lets the processes come.
     *
     * @param local what this process is
     * @param server the port at which they come
     * @param tls the encryption of their connections
     */
    Registration(JobContext local, ServerSocketChannel server, JobTls tls) throws IOException {
        this.local = local;
        own = Hello.own(local, server.socket().getInetAddress());
        door = new Door(local.loop());
        door.open(
                server,
                channel ->
                        JobLoop.handlers(
                                TlsHandler.ofServer(tls), new Link(channel, MAX_MESSAGE, this)));
        new Heartbeats(local, this::links, this::silent).start();
    }

    /**
     * Waits until all have come.
     *
     * @return the control of the job
     * @throws JobFailedException if they do not make a job, which those that have come are told
     */
    MasterControl await() throws InterruptedException {
        long millis = local.options().getTimeout().toMillis();
        local.loop()
                .thread()
                .schedule(() -> refuse(describeMissing()), millis, TimeUnit.MILLISECONDS);
        try {
            String refusal = outcome.get();
            if (refusal == null) {
                return control;
            }
            Link.finish(links());
            String note = " (%d attempts had another secret)".formatted(door.wrongKeys());
            throw new JobFailedException(
                    refusal + (door.wrongKeys() == 0 ? "" : note), -1, -1, null);
        } catch (InterruptedException e) {
            String text = "process 0 was interrupted while it waited for the others";
            local.loop().thread().execute(() -> refuse(text));
            outcome.join();
            Link.finish(links());
            throw e;
        } catch (ExecutionException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Returns all processes, in their order, when all have come. */
    List<JobMember> members() {
        List<JobMember> all = new ArrayList<>(List.of(own.member()));
        come.values().forEach(link -> all.add(link.hello().member()));
        return all;
    }

    private Collection<Link> links() {
        List<Link> links = new ArrayList<>(come.values());
        links.addAll(misfits);
        return links;
    }

    private void silent(Link link) {
        if (control != null) {
            control.silent(link);
        }
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
        if (message.type() == Message.Type.HELLO && link.hello() == null) {
            link.setHello(message.content(Hello.class));
            arrive(link, link.hello());
        } else if (message.type() != Message.Type.GOODBYE) {
            throw new IOException("a message before all had come: " + message.type());
        }
    }

    private void arrive(Link link, Hello hello) {
        if (outcome.isDone()) {
            // it alone, without harm to the job that runs
            String reason = outcome.join();
            turnAway(link, reason == null ? describeComplete(hello) : reason);
            return;
        }
        door.letIn(link.channel());
        link.send(Message.Type.HEARTBEAT, ""); // so that it knows
        Link old = come.get(hello.process());
        String mismatch = own.mismatch(hello, old == null ? own : old.hello());
        if (mismatch != null) {
            misfits.add(link);
            refuse(mismatch);
            return;
        }
        come.put(hello.process(), link);
        if (old != null) {
            old.channel().close();
        }
        if (missing().isEmpty()) {
            start();
        }
    }

    private void start() {
        control = new MasterControl(members(), come, local);
        for (Link link : come.values()) {
            // it reaches the master's ranks where it reached the master
            List<JobMember> members = members();
            members.set(0, own.at(link.channel().localAddress().getAddress()).member());
            link.touch();
            link.send(Message.Type.WELCOME, Message.welcome(local.options(), members));
        }
        outcome.complete(null);
    }

    /** {@inheritDoc} */
    @Override
    public void ended(Link link) {
        if (link.hello() != null
                && !outcome.isDone()
                && come.remove(link.hello().process(), link)) {
            lost.add(link.hello().process());
        }
    }

    private SortedSet<Integer> missing() {
        SortedSet<Integer> missing = new TreeSet<>();
        IntStream.range(1, own.processes()).forEach(missing::add);
        missing.removeAll(come.keySet());
        return missing;
    }

    private String describeMissing() {
        SortedSet<Integer> again = missing();
        again.retainAll(lost);
        String ended = " (" + ErrorTexts.processes(again) + " came, but ended again)";
        return ("%s of %d did not come to %s within %s%s: see whether each was started, reaches"
                        + " MASTER_ADDR:MASTER_PORT and has the same TP_SECRET, or give a longer"
                        + " time-out")
                .formatted(
                        ErrorTexts.processes(missing()),
                        own.processes(),
                        own.who(),
                        ErrorTexts.time(local.options().getTimeout()),
                        again.isEmpty() ? "" : ended);
    }

    private String describeComplete(Hello hello) {
        return ("%s came to %s, whose job is already complete: end the old job first, or set"
                        + " another MASTER_PORT")
                .formatted(hello.who(), own.who());
    }
}
