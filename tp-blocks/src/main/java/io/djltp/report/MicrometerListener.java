package io.djltp.report;

import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListenerAdapter;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.training.ParallelTrainer;
import io.micrometer.core.instrument.Counter;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.Meter;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Tag;
import io.micrometer.core.instrument.Tags;
import io.micrometer.core.instrument.Timer;
import io.micrometer.core.instrument.binder.BaseUnits;

import org.jspecify.annotations.Nullable;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * A listener that publishes a training to a registry of Micrometer, such as that of Prometheus:
 *
 * <pre>{@code
 * MeterRegistry registry = new PrometheusMeterRegistry(PrometheusConfig.DEFAULT);
 * config.addTrainingListeners(TrainingListener.Defaults.logging())
 *         .addTrainingListeners(new MicrometerListener(registry));
 * }</pre>
 *
 * <p>It needs {@code io.micrometer:micrometer-core}, on which this library depends optionally, and
 * {@code EasyTrain.fit} or a loop that calls {@code trainer.notifyListeners}: else it publishes
 * nothing. Each process publishes its own ranks:
 *
 * <ul>
 *   <li>timer {@code djltp.step}: the time of a training step, with loading its batch
 *   <li>timer {@code djltp.step.part} by {@code rank} and {@code part}: forward, backward, update,
 *       each kind of collective operation, and the time between passes
 *   <li>timer {@code djltp.collective.wait} by {@code rank}: the time of a step in which a rank
 *       waits for other ranks
 *   <li>counter {@code djltp.collective.calls} by {@code rank} and {@code operation}
 *   <li>counter {@code djltp.collective.bytes} by {@code rank}: what the rank puts in
 *   <li>counter {@code djltp.rows}: the rows of all batches
 *   <li>gauge {@code djltp.loss}: the loss of the last batch
 *   <li>gauge {@code djltp.ranks}: the number of ranks of all processes
 * </ul>
 *
 * <p>Under a trainer of DJL it publishes {@code djltp.step}, {@code djltp.rows}, {@code djltp.loss}
 * and {@code djltp.ranks}. The first step of a training is not timed, because it includes the
 * initialization. DJL calls listeners before the update of a batch, so the update and its
 * collective operations follow with the next batch, with the end of the epoch, or with the end of
 * the training. The meters stay in the registry after the training; the gauges show the latest
 * listener that has the same tags.
 */
public final class MicrometerListener extends TrainingListenerAdapter implements AutoCloseable {

    private final MeterRegistry registry;
    private final Tags tags;
    private final List<CollectiveCounts> counted = new ArrayList<>(); // by local rank
    private @Nullable TimeSplit split; // null before the first batch, and with a trainer of DJL
    private boolean registered; // the gauges are, with the first batch
    private volatile double loss = Double.NaN;
    private volatile int ranks = 1;
    private boolean timed; // after the first batch, whose time has the initialization in it
    private long begin; // of the step
    private WeakReference<Object> last = new WeakReference<>(this); // the outputs published

    /**
     * Creates a listener.
     *
     * @param registry where the meters are registered
     * @param tags tags of all meters, such as the name of the training
     */
    public MicrometerListener(MeterRegistry registry, Tag... tags) {
        this.registry = Objects.requireNonNull(registry, "registry");
        this.tags = Tags.of(tags);
    }

    /** {@inheritDoc} */
    @Override
    public void onTrainingBegin(Trainer trainer) {
        timed = false;
    }

    /** {@inheritDoc} DJL calls it after the passes of a batch, and before its update. */
    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
        Object outputs = batchData.getPredictions().values().stream().findFirst().orElseThrow();
        if (last.refersTo(outputs)) {
            return; // the listener was added twice
        }
        last = new WeakReference<>(outputs);
        BatchResult result = BatchResult.of(trainer, batchData);
        loss = result.loss();
        counter("djltp.rows", "The rows of all batches", "rows", tags).increment(result.rows());
        if (!registered) {
            registered = true;
            gauge("djltp.loss", "The loss of the last batch", null, () -> loss);
            gauge("djltp.ranks", "The ranks of all processes", "ranks", () -> ranks);
        }
        long nanos = System.nanoTime() - begin;
        if (timed) {
            timer("djltp.step", "The time of a step, with loading its batch", tags)
                    .record(nanos, TimeUnit.NANOSECONDS);
        }
        if (trainer instanceof ParallelTrainer parallel) {
            publish(parallel.getRanks(), nanos);
        }
        timed = true;
        begin = System.nanoTime();
    }

    private void publish(RankPool pool, long nanos) {
        if (split == null) {
            ranks = pool.getContext(0).getSize();
            split = new TimeSplit(pool);
            for (int i = 0; i < pool.size(); i++) {
                counted.add(new CollectiveCounts());
            }
        } else {
            List<Map<String, Long>> parts = split.take(nanos);
            parts.forEach(each -> each.remove(TimeSplit.UPDATE, 0L)); // published with the epoch
            record(pool, parts);
        }
        count(pool);
    }

    private void record(RankPool pool, List<Map<String, Long>> parts) {
        for (int i = 0; i < parts.size(); i++) {
            Tags ofRank = tagsOf(pool.getContext(i));
            parts.get(i)
                    .forEach(
                            (part, time) -> timer(part, ofRank).record(time, TimeUnit.NANOSECONDS));
        }
    }

    private Timer timer(String part, Tags ofRank) {
        return TimeSplit.WAITING.equals(part)
                ? timer(
                        "djltp.collective.wait",
                        "The time of a step in which a rank waits for other ranks",
                        ofRank)
                : timer(
                        "djltp.step.part",
                        "The time of a part of a step",
                        ofRank.and("part", part));
    }

    private Timer timer(String name, String description, Tags all) {
        return Timer.builder(name).description(description).tags(all).register(registry);
    }

    private Counter counter(String name, String description, String unit, Tags all) {
        return Counter.builder(name)
                .description(description)
                .baseUnit(unit)
                .tags(all)
                .register(registry);
    }

    /** Registers a gauge, and removes that of an earlier listener, which would stay otherwise. */
    private void gauge(
            String name, String description, @Nullable String unit, Supplier<Number> value) {
        registry.removeByPreFilterId(new Meter.Id(name, tags, unit, description, Meter.Type.GAUGE));
        Gauge.builder(name, value)
                .description(description)
                .baseUnit(unit)
                .tags(tags)
                .register(registry);
    }

    private Tags tagsOf(ParallelContext rank) {
        return tags.and("rank", "" + rank.getRank());
    }

    private void count(RankPool pool) {
        for (int i = 0; i < counted.size(); i++) {
            Tags ofRank = tagsOf(pool.getContext(i));
            CollectiveCounts counts = pool.getContext(i).getCounts();
            CollectiveCounts more = counts.minus(counted.set(i, counts));
            counter("djltp.collective.bytes", "What a rank puts in", BaseUnits.BYTES, ofRank)
                    .increment(more.bytes());
            for (Map.Entry<Collective, Long> each : more.calls().entrySet()) {
                Tags ofOperation = ofRank.and("operation", each.getKey().toString());
                counter("djltp.collective.calls", "Collective operations", "calls", ofOperation)
                        .increment(each.getValue());
            }
        }
    }

    /** {@inheritDoc} The time of an evaluation is not that of a step. */
    @Override
    public void onValidationBatch(Trainer trainer, BatchData batchData) {
        restartClock(trainer, true);
    }

    /** {@inheritDoc} */
    @Override
    public void onEpoch(Trainer trainer) {
        restartClock(trainer, false);
    }

    /** Publishes the last update, without the evaluation that may have followed it. */
    private void restartClock(Trainer trainer, boolean evaluated) {
        if (split != null && trainer instanceof ParallelTrainer parallel) {
            List<Map<String, Long>> parts = split.take(0);
            if (evaluated) {
                parts.forEach(each -> each.keySet().retainAll(Set.of(TimeSplit.UPDATE)));
            }
            parts.forEach(each -> each.values().removeIf(time -> time <= 0));
            record(parallel.getRanks(), parts);
        }
        begin = System.nanoTime();
    }

    /** {@inheritDoc} */
    @Override
    public void onTrainingEnd(Trainer trainer) {
        restartClock(trainer, false);
        if (trainer instanceof ParallelTrainer parallel) {
            count(parallel.getRanks());
        }
        close();
    }

    /** Measures times no longer. {@code EasyTrain.fit} and the close of the trainer call it. */
    @Override
    public void close() {
        if (split != null) {
            split.close();
            split = null;
        }
        counted.clear();
    }
}
