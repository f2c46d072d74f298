package io.djltp.job;

import io.netty.channel.EventLoop;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;

/**
 * How the processes come to the master: it waits for all, and checks that they fit together.
 *
 * <p>A process that ends while others are awaited may come again. The first that does not fit ends
 * the job for all that have come. Runs on the thread of the job's connections.
 */
final class Registration implements Link.Events {

    /** How long the end of a connection may take. */
    static final long END_NANOS = TimeUnit.SECONDS.toNanos(2);

    private final Hello[] hellos;
    private final Link[] links;
    private final List<Link> refused = new ArrayList<>();
    private final JobOptions options;
    private final Consumer<Link> letIn;
    private final Runnable start;
    private final SortedSet<Integer> lost = new TreeSet<>();
    private final CompletableFuture<String> outcome = new CompletableFuture<>();

    /**
     * Creates a registration.
     *
     * @param own what process 0 says of itself
     * @param options what the processes agree on
     * @param letIn what to do with the connection of a process that has come
     * @param start what to do when all have come
     */
    Registration(Hello own, JobOptions options, Consumer<Link> letIn, Runnable start) {
        this.options = options;
        this.letIn = letIn;
        this.start = start;
        hellos = new Hello[own.processes()];
        links = new Link[own.processes()];
        hellos[0] = own;
    }

    /**
     * Waits until all have come.
     *
     * @param loop the thread of the connections
     * @param deadline until when, on the clock of {@link System#nanoTime}
     * @return why they do not make a job, which those that have come were told; or {@code null}
     */
    String await(EventLoop loop, long deadline) throws InterruptedException {
        InterruptedException interrupt = null;
        try {
            outcome.get(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException e) {
            loop.execute(() -> outcome.complete(describeMissing()));
        } catch (InterruptedException e) {
            interrupt = e;
            String text = "process 0 was interrupted while it waited for the others";
            loop.execute(() -> outcome.complete(text));
        } catch (ExecutionException e) {
            throw new IllegalStateException(e);
        }
        String reason = outcome.join();
        if (reason != null) {
            refuse(reason);
        }
        if (interrupt != null && reason != null) {
            throw interrupt;
        }
        return reason;
    }

    /** Returns what all said, in their order. */
    List<Hello> hellos() {
        return List.of(hellos);
    }

    /** Returns the links to those that have come. */
    List<Link> links() {
        return Arrays.stream(links).filter(Objects::nonNull).toList();
    }

    /** Tells all that have come why there is no job, and ends their connections. */
    private void refuse(String reason) {
        List<Link> all = new ArrayList<>(refused);
        all.addAll(links());
        for (Link link : all) {
            link.send(new Message(Message.Type.REFUSE, reason));
            link.finish();
        }
        long deadline = System.nanoTime() + END_NANOS;
        all.forEach(link -> link.close(deadline));
    }

    /** {@inheritDoc} */
    @Override
    public void received(Link link, Message message) throws IOException {
        if (message.type() == Message.Type.HELLO && link.process() < 0) {
            come(link, message.content(Hello.class));
        } else if (message.type() != Message.Type.GOODBYE) {
            throw new IOException("a message before all had come: " + message.type());
        }
    }

    private void come(Link link, Hello hello) {
        if (outcome.isDone()) {
            turnAway(link, hello);
            return;
        }
        letIn.accept(link);
        link.send(new Message(Message.Type.HEARTBEAT, "")); // so that it knows
        String mismatch = mismatch(hello);
        if (mismatch != null) {
            refused.add(link);
            outcome.complete(mismatch);
            return;
        }
        Link old = links[hello.process()];
        hellos[hello.process()] = hello;
        links[hello.process()] = link;
        link.is(hello.process(), this);
        if (old != null) {
            old.abort();
        }
        if (missing().isEmpty()) {
            start.run();
            outcome.complete(null);
        }
    }

    /** {@inheritDoc} */
    @Override
    public void ended(Link link, String error) {
        int process = link.process();
        if (process >= 0 && links[process] == link && !outcome.isDone()) {
            lost.add(process);
            hellos[process] = null;
            links[process] = null;
        }
    }

    private String mismatch(Hello hello) {
        Hello own = hellos[0];
        if (!own.version().equals(hello.version())) {
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
    private void turnAway(Link link, Hello hello) {
        String reason = outcome.join();
        String complete =
                ("%s came to %s, whose job is already complete: end the old job first, or set"
                                + " another MASTER_PORT")
                        .formatted(hello.who(), hellos[0].who());
        link.send(new Message(Message.Type.REFUSE, reason == null ? complete : reason));
        link.finish();
    }
}
