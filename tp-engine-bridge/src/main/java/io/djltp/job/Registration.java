package io.djltp.job;

import io.netty.channel.EventLoop;

import java.io.IOException;
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
import java.util.function.Consumer;
import java.util.stream.IntStream;

/**
 * How the processes come to the master: it waits for all, and checks that they fit together.
 *
 * <p>A process that ends while others are awaited may come again. The first that does not fit ends
 * the job for all that have come. Runs on the thread of the job's connections.
 */
final class Registration implements Link.Events {

    private final Hello own;
    private final JobOptions options;
    private final EventLoop loop;
    private final Consumer<Link> letIn;
    private final Runnable start;
    private final SortedMap<Integer, Link> come = new TreeMap<>();
    private final SortedSet<Integer> lost = new TreeSet<>();
    private Link misfit;
    // why they do not make a job, or null if they do
    private final CompletableFuture<String> outcome = new CompletableFuture<>();

    /**
     * Creates a registration.
     *
     * @param own what process 0 says of itself
     * @param options what the processes agree on
     * @param loop the thread of the connections
     * @param letIn what to do with the connection of a process that has come
     * @param start what to do when all have come
     */
    Registration(
            Hello own, JobOptions options, EventLoop loop, Consumer<Link> letIn, Runnable start) {
        this.own = own;
        this.options = options;
        this.loop = loop;
        this.letIn = letIn;
        this.start = start;
    }

    /**
     * Waits until all have come.
     *
     * @return why they do not make a job, which those that have come were told; or {@code null}
     */
    String await() throws InterruptedException {
        long millis = options.getTimeout().toMillis();
        loop.schedule(() -> refuse(describeMissing()), millis, TimeUnit.MILLISECONDS);
        try {
            return outcome.get();
        } catch (InterruptedException e) {
            loop.execute(() -> refuse("process 0 was interrupted while it waited for the others"));
            outcome.join();
            throw e;
        } catch (ExecutionException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Returns the links to those that have come, by their numbers. */
    SortedMap<Integer, Link> byNumber() {
        return come;
    }

    /** Returns the links to those that have come, and to one that does not fit. */
    Collection<Link> links() {
        List<Link> links = new ArrayList<>(come.values());
        if (misfit != null) {
            links.add(misfit);
        }
        return links;
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
            arrive(link);
        } else if (message.type() != Message.Type.GOODBYE) {
            throw new IOException("a message before all had come: " + message.type());
        }
    }

    private void arrive(Link link) {
        Hello hello = link.hello();
        if (outcome.isDone()) {
            // it alone, without harm to the job that runs
            String reason = outcome.join();
            turnAway(link, reason == null ? describeComplete(hello) : reason);
            return;
        }
        letIn.accept(link);
        String mismatch = own.mismatch(hello);
        mismatch = mismatch == null ? describeDouble(hello) : mismatch;
        if (mismatch != null) {
            misfit = link;
            refuse(mismatch);
            return;
        }
        Link old = come.put(hello.process(), link);
        if (old != null) {
            old.channel().close();
        }
        if (missing().isEmpty()) {
            start.run();
            outcome.complete(null);
        }
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

    private String describeDouble(Hello hello) {
        Link other = come.get(hello.process());
        Hello there = other == null ? own : other.hello();
        return there.process() != hello.process() || there.instance() == hello.instance()
                ? null
                : there.describeDouble(hello);
    }

    private String describeMissing() {
        SortedSet<Integer> again = missing();
        again.retainAll(lost);
        String ended = " (" + Texts.processes(again) + " came, but ended again)";
        return ("%s of %d did not come to %s within %s%s: see whether each was started, reaches"
                        + " MASTER_ADDR:MASTER_PORT and has the same TP_SECRET, or give a longer"
                        + " time-out")
                .formatted(
                        Texts.processes(missing()),
                        own.processes(),
                        own.who(),
                        Texts.time(options.getTimeout()),
                        again.isEmpty() ? "" : ended);
    }

    private String describeComplete(Hello hello) {
        return ("%s came to %s, whose job is already complete: end the old job first, or set"
                        + " another MASTER_PORT")
                .formatted(hello.who(), own.who());
    }
}
