package io.djltp.report;

import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListenerAdapter;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.training.ParallelTrainer;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Tag;
import io.micrometer.core.instrument.Tags;
import io.micrometer.core.instrument.Timer;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * A listener that publishes a training to a registry of Micrometer, such as that of Prometheus:
 *
 * <pre>{@code
 * MeterRegistry registry = new PrometheusMeterRegistry(PrometheusConfig.DEFAULT);
 * config.addTrainingListeners(TrainingListener.Defaults.logging())
 *         .addTrainingListeners(new MicrometerListener(registry));
 * }</pre>
 *
 * <p>It needs {@code io.micrometer:micrometer-core}, on which this library depends optionally. Each
 * process publishes its own ranks:
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
 * <p>Under a trainer of DJL it publishes {@code djltp.step}, {@code djltp.rows} and {@code
 * djltp.loss}. The collective operations of a step come with the next step, those of the last step
 * with the end of the training. The meters stay in the registry when the training has ended.
 */
public final class MicrometerListener extends TrainingListenerAdapter implements AutoCloseable {

    private final MeterRegistry registry;
    private final Tags tags;
    private final List<CollectiveCounts> counted = new ArrayList<>(); // by local rank
    private @Nullable TimeSplit split; // null before the first batch, and with a trainer of DJL
    private boolean registered; // the gauges are, with the first batch
    private volatile double loss = Double.NaN;
    private volatile int ranks = 1;
    private long begin = System.nanoTime(); // of the step, or of the time until it

    /**
     * Creates a listener.
     *
     * @param registry where the meters are registered
     * @param tags tags of all meters, such as the name of the training
     */
    public MicrometerListener(MeterRegistry registry, Tag... tags) {
        this.registry = registry;
        this.tags = Tags.of(tags);
    }

    /** {@inheritDoc} */
    @Override
    public void onTrainingBegin(Trainer trainer) {
        begin = System.nanoTime();
    }

    /** {@inheritDoc} DJL calls it after the passes of a batch, and before its update. */
    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
        BatchResult result = BatchResult.of(trainer, batchData);
        loss = result.loss();
        registry.counter("djltp.rows", tags).increment(result.rows());
        if (!registered) {
            registered = true;
            Gauge.builder("djltp.loss", () -> loss).tags(tags).register(registry);
            Gauge.builder("djltp.ranks", () -> ranks).tags(tags).register(registry);
        }
        long nanos = System.nanoTime() - begin;
        registry.timer("djltp.step", tags).record(nanos, TimeUnit.NANOSECONDS);
        if (trainer instanceof ParallelTrainer parallel) {
            publish(parallel.getRanks(), nanos);
        }
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
            for (int i = 0; i < parts.size(); i++) {
                Tags ofRank = tagsOf(pool.getContext(i));
                parts.get(i)
                        .forEach(
                                (part, time) ->
                                        timer(part, ofRank).record(time, TimeUnit.NANOSECONDS));
            }
        }
        count(pool);
    }

    private Timer timer(String part, Tags ofRank) {
        return TimeSplit.WAITING.equals(part)
                ? registry.timer("djltp.collective.wait", ofRank)
                : registry.timer("djltp.step.part", ofRank.and("part", part));
    }

    private Tags tagsOf(ParallelContext rank) {
        return tags.and("rank", "" + rank.getRank());
    }

    private void count(RankPool pool) {
        for (int i = 0; i < counted.size(); i++) {
            Tags ofRank = tagsOf(pool.getContext(i));
            CollectiveCounts counts = pool.getContext(i).getCounts();
            CollectiveCounts more = counts.minus(counted.set(i, counts));
            registry.counter("djltp.collective.bytes", ofRank).increment(more.bytes());
            for (Map.Entry<Collective, Long> each : more.calls().entrySet()) {
                Tags ofOperation = ofRank.and("operation", each.getKey().toString());
                registry.counter("djltp.collective.calls", ofOperation).increment(each.getValue());
            }
        }
    }

    /** {@inheritDoc} The time of an evaluation is not that of a step. */
    @Override
    public void onValidationBatch(Trainer trainer, BatchData batchData) {
        restartClock();
    }

    /** {@inheritDoc} */
    @Override
    public void onEpoch(Trainer trainer) {
        restartClock();
    }

    private void restartClock() {
        if (split != null) {
            split.take(0);
        }
        begin = System.nanoTime();
    }

    /** {@inheritDoc} */
    @Override
    public void onTrainingEnd(Trainer trainer) {
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
