package io.djltp.llm;

import io.djltp.internal.Errors;
import io.djltp.llm.GeneratedToken.FinishReason;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.rank.RankFailedException;

import org.jspecify.annotations.Nullable;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * The texts of all generations of a {@link Generator}. They share the steps of its decoder: a
 * thread that needs a token computes a step for all texts, and the threads that need one meanwhile
 * sleep. Texts join and leave between two steps.
 */
final class GenerationLoop implements AutoCloseable {

    private static final int SHARED = 16; // tokens that are worth waiting for another text

    private final Decoder decoder;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition stepped = lock.newCondition();
    private final Deque<Text> waiting = new ArrayDeque<>();
    private final List<Text> running = new ArrayList<>();
    private final List<Slot> free = new ArrayList<>(); // the longest unused first
    private final Set<Generation> sleeping = new LinkedHashSet<>();
    private final @Nullable ScheduledExecutorService heartbeat; // of a leader
    private boolean stepping; // a thread computes, without the lock
    private boolean closed;
    private @Nullable Throwable failure;

    /**
     * A free place in the cache.
     *
     * @param number its number
     * @param ids a text
     * @param count of how many of its ids the keys and values are there
     */
    record Slot(int number, int[] ids, int count) {

        /** Returns the place for something else, which is equal to no earlier one. */
        Slot reused() {
            return new Slot(number, new int[0], 0);
        }
    }

    /** A text of a generation: the ids of its prompt, and those that follow. */
    static final class Text {

        final Generation generation;
        final int prompt;
        final int sample; // how many equal prompts of the generation come before
        final int start; // of what is generated
        final TextStream stream;
        int[] ids;
        int count;
        @Nullable FinishReason reason;
        private int slot;
        private int cached; // ids whose keys and values are in the cache
        private int scaledTo; // the count for which they are rotated, if it matters
        private @Nullable Text source; // that has the first of them, or will have
        private int shared; // how many of them
        private boolean begun;

        Text(Generation generation, int prompt, int[] ids, int sample, TextStream stream) {
            this.generation = generation;
            this.prompt = prompt;
            this.ids = ids.clone();
            this.sample = sample;
            this.stream = stream;
            count = ids.length;
            start = count;
        }

        private void add(int id) {
            if (count == ids.length) {
                ids = Arrays.copyOf(ids, count + Math.max(16, count / 2));
            }
            ids[count++] = id;
        }
    }

    GenerationLoop(Decoder decoder) {
        this.decoder = decoder;
        for (int i = 0; i < decoder.size().batch(); i++) {
            free.add(new Slot(i, new int[0], 0));
        }
        if (decoder.isLed() && !decoder.isFollower()) {
            long pause = decoder.pause().toMillis();
            heartbeat =
                    Executors.newSingleThreadScheduledExecutor(
                            task -> {
                                Thread thread = new Thread(task, "tp-generator-heartbeat");
                                thread.setDaemon(true);
                                return thread;
                            });
            heartbeat.scheduleWithFixedDelay(this::beat, pause, pause, TimeUnit.MILLISECONDS);
        } else {
            heartbeat = null;
        }
    }

    /** Computes a step even if nobody waits for one, so that other processes know of this one. */
    private void beat() {
        lock.lock();
        try {
            if (!stepping) {
                checkUsable();
                step();
            }
        } finally {
            wakeNext();
            lock.unlock();
        }
    }

    Condition newCondition() {
        return lock.newCondition();
    }

    <T> T locked(Supplier<T> read) {
        lock.lock();
        try {
            return read.get();
        } finally {
            lock.unlock();
        }
    }

    int getRunning() {
        return locked(running::size);
    }

    int getWaiting() {
        return locked(waiting::size);
    }

    /** Throws if no step can be computed any more. */
    void check() {
        locked(
                () -> {
                    checkUsable();
                    return this;
                });
    }

    private void checkUsable() {
        Errors.checkState(!closed, "The generator is closed");
        if (failure instanceof RankFailedException e) { // with the stack trace of this thread
            throw new RankFailedException(e.getMessage(), e.getRank(), e.isRemote(), e.getCause());
        }
        if (failure != null) {
            throw new IllegalStateException("The generator has failed: " + failure, failure);
        }
    }

    /** Adds texts behind those that wait. */
    void add(List<Text> texts) {
        lock.lock();
        try {
            checkUsable();
            waiting.addAll(texts);
        } finally {
            lock.unlock();
        }
    }

    /** Returns the next token of a generation. */
    GeneratedToken next(Generation generation) {
        lock.lock();
        try {
            while (generation.ready.isEmpty()) {
                if (generation.cancelled) {
                    throw new CancellationException("The generation was closed");
                }
                if (generation.hasEnded()) {
                    throw new NoSuchElementException("All texts have ended");
                }
                checkUsable();
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
                if (stepping) {
                    sleeping.add(generation);
                    generation.arrived.await();
                } else {
                    step();
                }
            }
            return generation.ready.remove();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(
                    "Interrupted while waiting for a token. The generation goes on: call next()"
                            + " again, or close() to end it",
                    e);
        } finally {
            sleeping.remove(generation);
            wakeNext();
            lock.unlock();
        }
    }

    /** Wakes the thread that computes the next step, if none does. */
    private void wakeNext() {
        if (!stepping) {
            sleeping.stream().findFirst().ifPresent(generation -> generation.arrived.signal());
        }
    }

    private void step() {
        computing(
                () -> {
                    while (!waiting.isEmpty() && !free.isEmpty()) {
                        start(waiting.remove());
                    }
                    List<Text> asked = new ArrayList<>();
                    DecoderStep step = fill(asked);
                    long begin = System.nanoTime();
                    DecoderStep.Choice[] choices = unlocked(() -> decoder.choose(step));
                    long nanos = System.nanoTime() - begin;
                    running.forEach(text -> text.generation.addTime(nanos));
                    for (int i = 0; i < choices.length; i++) {
                        accept(asked.get(i), choices[i]);
                    }
                    return choices;
                });
    }

    /**
     * Computes between two steps, with free places of the cache.
     *
     * @param most how many places are of use
     * @param before the places of an earlier call, or none for any, as if they were empty
     * @param compute gets the places, one or more
     * @return what it returns, or {@code null} if texts have taken the places
     */
    <T> @Nullable T alone(int most, List<Slot> before, Function<List<Slot>, T> compute) {
        lock.lock();
        try {
            checkUsable();
            while (stepping
                    || free.isEmpty()
                    || running.stream().anyMatch(text -> text.source != null)) {
                if (stepping) {
                    stepped.awaitUninterruptibly();
                } else {
                    step();
                }
                checkUsable();
            }
            if (!free.containsAll(before)) {
                return null;
            }
            int count = Math.min(most, free.size());
            List<Slot> taken = before.isEmpty() ? List.copyOf(free.subList(0, count)) : before;
            free.removeAll(taken);
            List<Slot> used = taken.stream().map(Slot::reused).toList();
            free.addAll(used);
            return computing(() -> unlocked(() -> compute.apply(used)));
        } finally {
            wakeNext();
            lock.unlock();
        }
    }

    private <T> T computing(Supplier<T> work) {
        stepping = true;
        try {
            return work.get();
        } catch (RuntimeException | Error e) {
            failure = e;
            sleeping.forEach(generation -> generation.arrived.signal());
            throw e;
        } finally {
            stepping = false;
            removeCancelled();
            stepped.signalAll();
        }
    }

    private <T> T unlocked(Supplier<T> work) {
        lock.unlock();
        try {
            return work.get();
        } finally {
            lock.lock();
        }
    }

    /**
     * Gives a text the free place whose text has the most in common with it. If a text that runs
     * has more, the new one waits until it is computed, and copies it.
     */
    private void start(Text text) {
        Slot best = free.get(0);
        for (Slot slot : free) {
            int common = common(text, slot.ids, slot.count);
            if (common > text.cached) {
                best = slot;
                text.cached = common;
            }
        }
        text.shared = text.cached + SHARED - 1;
        for (Text other : running) {
            int common = common(text, other.ids, other.count);
            if (common > text.shared) {
                text.source = other;
                text.shared = common;
                text.cached = 0;
                best = free.get(0);
            }
        }
        free.remove(best);
        text.slot = best.number;
        running.add(text);
    }

    private static int common(Text text, int[] ids, int count) {
        // logits are computed anew, and of others a row
        int most = text.generation.logits ? 0 : Math.min(count, text.count - 1);
        int common = Arrays.mismatch(ids, 0, most, text.ids, 0, most);
        return common < 0 ? most : common;
    }

    /** Copies what a text has in common with its source, as soon as it is there. */
    private void share(Text text, DecoderStep step) {
        Text source = text.source;
        if (source == null) {
            return;
        }
        boolean scaled = Math.max(source.scaledTo, text.scaledTo) > 0; // own keys each
        if (source.cached >= text.shared && !scaled) { // also if it has just ended
            step.copy(source.slot, text.slot, text.shared);
            text.cached = text.shared;
            text.source = null;
        } else if (scaled || !running.contains(source)) {
            text.source = null;
        }
    }

    private void end(Text text) {
        free.add(new Slot(text.slot, text.ids, text.scaledTo > 0 ? 0 : text.cached));
    }

    /** Fills a step with the next tokens of texts, then with what is left of prompts. */
    private DecoderStep fill(List<Text> asked) {
        DecoderStep step = new DecoderStep(decoder.size().rows());
        running.forEach(text -> share(text, step)); // before there are other rows in the cache
        for (boolean first : new boolean[] {true, false}) {
            for (Text text : running) {
                RotaryEmbedding rotary = decoder.config().getRotary();
                if (rotary != null && rotary.isScaledBetween(text.scaledTo, text.count)) {
                    text.cached = 0;
                    text.scaledTo = text.count;
                }
                int missing = text.count - text.cached;
                boolean waits = missing == 0 || text.source != null || step.isFull();
                if (waits || (missing == 1) != first) {
                    continue;
                }
                if (!text.begun) {
                    text.generation.addReused(text.cached);
                    text.begun = true;
                }
                int rows = step.count();
                while (text.cached < text.count && !step.isFull()) {
                    step.add(text.slot, text.cached, text.ids[text.cached++], text.count);
                }
                boolean ofPrompt = !first || text.count == text.start;
                text.generation.addRows(step.count() - rows, ofPrompt);
                if (text.cached == text.count) {
                    step.ask(sampling(text));
                    asked.add(text);
                }
            }
        }
        return step;
    }

    private static DecoderStep.Sampling sampling(Text text) {
        GenerationOptions options = text.generation.options;
        boolean whole = options.getRepetitionPenalty() != 1;
        int[] context = whole ? Arrays.copyOf(text.ids, text.count) : new int[0];
        int number = text.count - text.start;
        return new DecoderStep.Sampling(
                options, text.sample, number, context, text.generation.logits);
    }

    private void accept(Text text, DecoderStep.Choice choice) {
        Generation generation = text.generation;
        if (generation.cancelled) {
            return;
        }
        GenerationOptions options = generation.options;
        String piece = "";
        if (options.getStopTokens().contains(choice.id())) {
            text.reason = FinishReason.STOP;
        } else {
            text.add(choice.id());
            piece = text.stream.add(choice.id());
            if (text.stream.isStopped()) {
                text.reason = FinishReason.STOP;
            } else if (text.count - text.start >= options.getMaxTokens()
                    || text.count >= decoder.size().length()) {
                text.reason = FinishReason.LENGTH;
            }
        }
        if (text.reason != null) {
            piece += text.stream.finish();
            running.remove(text);
            end(text);
        }
        generation.add(text, choice, piece);
    }

    /** Ends a generation: its texts leave at once or, during a step, after it. */
    void cancel(Generation generation) {
        lock.lock();
        try {
            generation.cancelled = true;
            generation.ready.clear();
            generation.arrived.signal();
            waiting.removeIf(text -> text.generation == generation);
            if (!stepping) {
                removeCancelled();
            }
        } finally {
            lock.unlock();
        }
    }

    private void removeCancelled() {
        running.stream().filter(text -> text.generation.cancelled).forEach(this::end);
        running.removeIf(text -> text.generation.cancelled);
    }

    /** Lets a step end, and those that wait for one throw. */
    @Override
    public void close() {
        lock.lock();
        try {
            if (closed) {
                return;
            }
            closed = true;
            if (heartbeat != null) {
                heartbeat.shutdown();
            }
            sleeping.forEach(generation -> generation.arrived.signal());
            while (stepping) {
                stepped.awaitUninterruptibly();
            }
        } finally {
            lock.unlock();
        }
        decoder.close();
    }
}
