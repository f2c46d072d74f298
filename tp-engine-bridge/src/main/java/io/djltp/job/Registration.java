package io.djltp.job;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;

/**
 * How the processes come to the master: it waits for all, and checks that they fit together.
 *
 * <p>A process that ends while others are awaited may come again. The first that does not fit ends
 * the job for all that have come.
 */
final class Registration implements MemberAcceptor.Handler, Link.Events {

    /** How long the end of a connection may take. */
    static final long END_NANOS = TimeUnit.SECONDS.toNanos(2);

    private static final long MAX_MESSAGE = Job.MAX_EXCHANGE + 64 * 1024;

    private final Hello[] hellos;
    private final Link[] links;
    private final List<Link> refused = new ArrayList<>();
    private final JobOptions options;
    private final Status status;
    private final SortedSet<Integer> lost = new TreeSet<>();
    private String refusal;
    private boolean over;
    private boolean broken;
    private Link.Events started;

    Registration(Hello own, JobOptions options, Status status) {
        this.options = options;
        this.status = status;
        hellos = new Hello[own.processes()];
        links = new Link[own.processes()];
        hellos[0] = own;
    }

    /**
     * Waits until all have come.
     *
     * @param deadline until when, on the clock of {@link System#nanoTime}
     * @return why they do not make a job, or {@code null} if they do
     */
    synchronized String await(long deadline) throws InterruptedException {
        while (refusal == null && !missing().isEmpty()) {
            long left = deadline - System.nanoTime();
            if (left <= 0) {
                refusal = describeMissing();
            } else {
                TimeUnit.NANOSECONDS.timedWait(this, left);
            }
        }
        over = true;
        return refusal;
    }

    /**
     * Starts the job: from now on, what happens on the links goes to another.
     *
     * @param events what gets it
     * @return whether all are still there
     */
    synchronized boolean start(Link.Events events) {
        started = events;
        return !broken;
    }

    /** Returns what all said, in their order. */
    synchronized List<Hello> hellos() {
        return List.of(hellos);
    }

    /** Returns the links to all; that to the master itself is {@code null}. */
    synchronized Link[] links() {
        return links.clone();
    }

    /** Tells all that have come why there is no job, and ends their connections. */
    void refuse(String reason) {
        List<Link> all = new ArrayList<>();
        synchronized (this) {
            over = true;
            all.addAll(refused);
            for (Link link : links) {
                if (link != null) {
                    all.add(link);
                }
            }
        }
        for (Link link : all) {
            link.send(Message.of(Message.Type.REFUSE, reason));
            link.finish();
        }
        long deadline = System.nanoTime() + END_NANOS;
        all.forEach(link -> link.close(deadline));
    }

    /** {@inheritDoc} */
    @Override
    public synchronized void accept(SocketChannel channel, byte[] payload) throws IOException {
        Hello hello = Hello.decode(payload);
        if (over) {
            turnAway(channel, hello);
            return;
        }
        Link link =
                new Link(
                        channel,
                        hello.process(),
                        MAX_MESSAGE,
                        options.getHeartbeatTimeout(),
                        status::get,
                        this);
        String mismatch = mismatch(hello);
        if (mismatch == null) {
            register(hello, link);
        } else {
            refused.add(link);
            refusal = mismatch;
        }
        link.start();
        notifyAll();
    }

    private void register(Hello hello, Link link) {
        Link old = links[hello.process()];
        hellos[hello.process()] = hello;
        links[hello.process()] = link;
        if (old != null) {
            old.abort();
        }
    }

    /** {@inheritDoc} */
    @Override
    public void received(Link link, Message message) throws IOException {
        Link.Events events;
        synchronized (this) {
            events = started;
        }
        if (events != null) {
            events.received(link, message);
        } else if (message.type() != Message.Type.GOODBYE) {
            throw new IOException("a message before all had come");
        }
    }

    /** {@inheritDoc} */
    @Override
    public void ended(Link link, String error) {
        Link.Events events;
        synchronized (this) {
            events = started;
            if (events == null && links[indexOf(link)] == link) {
                lose(link.process());
            }
        }
        if (events != null) {
            events.ended(link, error);
        }
    }

    private void lose(int process) {
        links[process].abort();
        if (over) {
            broken = true;
        } else {
            lost.add(process);
            hellos[process] = null;
            links[process] = null;
        }
    }

    // a refused process may have a number that does not exist
    private int indexOf(Link link) {
        return Math.floorMod(link.process(), links.length);
    }

    private String mismatch(Hello hello) {
        Hello own = hellos[0];
        if (!hello.version().equals(own.version())) {
            return differ(own, hello, "version " + own.version(), "version " + hello.version())
                    + ": start the same version of the library in all processes";
        }
        if (hello.processes() != own.processes()) {
            return differ(own, hello, own.processes() + " processes", "" + hello.processes())
                    + ": set the same world size for all processes";
        }
        if (hello.ranks() != own.ranks()) {
            return differ(own, hello, own.ranks() + " ranks", "" + hello.ranks())
                    + ": give the same number of ranks to all processes";
        }
        if (hello.process() < 0 || hello.process() >= hellos.length) {
            return hello.who() + " does not exist in a job of " + hellos.length + " processes";
        }
        Hello there = hellos[hello.process()];
        if (there != null && there.instance() != hello.instance()) {
            return there.who()
                    + " and "
                    + hello.who()
                    + " have the same number: give every process a RANK of its own";
        }
        return null;
    }

    private static String differ(Hello own, Hello other, String ownValue, String otherValue) {
        return "%s says %s, %s says %s".formatted(own.who(), ownValue, other.who(), otherValue);
    }

    private SortedSet<Integer> missing() {
        SortedSet<Integer> missing = new TreeSet<>();
        for (int i = 0; i < hellos.length; i++) {
            if (hellos[i] == null) {
                missing.add(i);
            }
        }
        return missing;
    }

    private String describeMissing() {
        SortedSet<Integer> missing = missing();
        SortedSet<Integer> again = new TreeSet<>(missing);
        again.retainAll(lost);
        return "%s of %d did not come to %s within %s%s: see whether %s"
                .formatted(
                        Texts.processes(missing),
                        hellos.length,
                        hellos[0].who(),
                        Texts.time(options.getTimeout()),
                        again.isEmpty()
                                ? ""
                                : " (" + Texts.processes(again) + " came, but ended again)",
                        "each was started, reaches MASTER_ADDR:MASTER_PORT and has the same"
                                + " TP_SECRET, or give a longer time-out");
    }

    /** Refuses a process alone, without harm to the job that runs. */
    private void turnAway(SocketChannel channel, Hello hello) throws IOException {
        String complete =
                ("%s came to %s, whose job is already complete: end the old job first, or set"
                                + " another MASTER_PORT")
                        .formatted(hello.who(), hellos[0].who());
        String text = refusal == null ? complete : refusal;
        ByteBuffer bytes = Message.of(Message.Type.REFUSE, text).encode();
        // few bytes on a fresh connection: this does not wait
        channel.write(bytes);
        channel.close();
    }
}
