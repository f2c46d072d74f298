package io.djltp.report;

import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.loss.Loss;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.ForkedJvm;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.launch.Backend;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.ThreadedJob;
import io.djltp.testing.Unchecked;
import io.djltp.training.ParallelTrainer;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Tag;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import io.micrometer.prometheusmetrics.PrometheusConfig;
import io.micrometer.prometheusmetrics.PrometheusMeterRegistry;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/** The meters of a training have its figures. */
public class MicrometerListenerTest {

    private static final int EPOCHS = 2;
    private static final int BATCHES = 3;
    private static final int BATCH = 4;
    private static final int STEPS = EPOCHS * BATCHES;
    private static final int SLEEP = 20;

    @Test(timeOut = 60_000)
    public void metersHaveTheFiguresOfTheTraining() {
        SimpleMeterRegistry registry = new SimpleMeterRegistry();
        CollectiveCounts counts = train(config().build(), registry);
        Assert.assertEquals(registry.get("djltp.step").timer().count(), STEPS - 1);
        Assert.assertTrue(millis(registry, "djltp.step") >= STEPS * SLEEP / 2);
        Assert.assertEquals(registry.get("djltp.rows").counter().count(), STEPS * BATCH);
        Assert.assertEquals(registry.get("djltp.ranks").gauge().value(), 2.0);
        double loss = registry.get("djltp.loss").gauge().value();
        Assert.assertTrue(loss > 0 && loss < 10, "" + loss);
        for (String rank : new String[] {"0", "1"}) {
            double bytes =
                    registry.get("djltp.collective.bytes").tag("rank", rank).counter().count();
            Assert.assertEquals(bytes, counts.bytes());
            counts.calls()
                    .forEach(
                            (operation, calls) ->
                                    Assert.assertEquals(
                                            registry.get("djltp.collective.calls")
                                                    .tag("rank", rank)
                                                    .tag("operation", operation.toString())
                                                    .counter()
                                                    .count(),
                                            calls.doubleValue()));
            for (String part : new String[] {"forward", "backward", "update", "all-reduce"}) {
                long steps =
                        registry.get("djltp.step.part")
                                .tags("rank", rank, "part", part)
                                .timer()
                                .count();
                // passes are timed from the second step on, all updates
                Assert.assertEquals(steps, part.equals("update") ? STEPS : STEPS - 1, part);
            }
        }
        double waited = millis(registry, "djltp.collective.wait", "rank", "0");
        Assert.assertTrue(waited >= SLEEP, "" + waited);
    }

    /**
     * Each process publishes its rank; the first one knows how long it has waited for the other.
     */
    @Test(timeOut = 60_000)
    public void aProcessWaitsForOneThatIsLate() throws Exception {
        List<SimpleMeterRegistry> registries = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            registries.add(new SimpleMeterRegistry());
        }
        ThreadedJob.run(
                job ->
                        train(
                                config().optJob(job).optBackend(Backend.TCP).build(),
                                registries.get(job.getFirstRank())));
        double waited = millis(registries.get(0), "djltp.collective.wait", "rank", "0");
        Assert.assertTrue(waited >= SLEEP, "" + waited);
        Assert.assertNull(registries.get(0).find("djltp.collective.wait").tag("rank", "1").timer());
        long waits = registries.get(1).get("djltp.collective.wait").timer().count();
        Assert.assertTrue(waits >= STEPS - 1, "" + waits);
    }

    @Test(timeOut = 60_000)
    public void prometheusReadsThem() {
        PrometheusMeterRegistry registry = new PrometheusMeterRegistry(PrometheusConfig.DEFAULT);
        train(config().build(), registry);
        String text = registry.scrape();
        for (String line :
                new String[] {
                    "djltp_step_seconds_count{run=\"test\"} 5",
                    "djltp_rows_total{run=\"test\"} 24.0",
                    "djltp_ranks{run=\"test\"} 2.0",
                    "djltp_collective_bytes_total{rank=\"1\",run=\"test\"}",
                    "djltp_collective_wait_seconds_sum{rank=\"0\",run=\"test\"}",
                    "djltp_step_part_seconds_count{part=\"backward\",rank=\"1\",run=\"test\"} 5"
                }) {
            Assert.assertTrue(text.contains(line), line + " is missing in " + text);
        }
    }

    @Test(timeOut = 60_000)
    public void aTrainerOfDjlHasStepsAndLosses() {
        SimpleMeterRegistry registry = new SimpleMeterRegistry();
        try (Model model = Blocks.model(Blocks.linear(3));
                NDManager manager = NDManager.newBaseManager();
                Trainer trainer = model.newTrainer(training(registry))) {
            Training.fit(trainer, manager);
        }
        Assert.assertEquals(registry.get("djltp.step").timer().count(), STEPS - 1);
        Assert.assertEquals(registry.get("djltp.ranks").gauge().value(), 1.0);
        Assert.assertNull(registry.find("djltp.step.part").timer());
    }

    /** Gauges follow the latest training, and counters add up. */
    @Test(timeOut = 60_000)
    public void aSecondTrainingUsesTheSameRegistry() {
        PrometheusMeterRegistry registry = new PrometheusMeterRegistry(PrometheusConfig.DEFAULT);
        train(config().build(), registry);
        train(config().setRanks(3).build(), registry);
        Assert.assertEquals(registry.get("djltp.ranks").gauges().size(), 1);
        Assert.assertEquals(registry.get("djltp.ranks").gauge().value(), 3.0);
        Assert.assertEquals(registry.get("djltp.rows").counter().count(), 2 * STEPS * BATCH);
        Assert.assertTrue(registry.scrape().contains("djltp_ranks{run=\"test\"} 3.0"));
    }

    @Test(timeOut = 60_000)
    public void aListenerThatIsAddedTwiceCountsOnce() {
        SimpleMeterRegistry registry = new SimpleMeterRegistry();
        MicrometerListener listener = new MicrometerListener(registry);
        Training.run(config().build(), Training.plain().addTrainingListeners(listener, listener));
        Assert.assertEquals(registry.get("djltp.rows").counter().count(), STEPS * BATCH);
        Assert.assertEquals(registry.get("djltp.step").timer().count(), STEPS - 1);
    }

    @Test(expectedExceptions = NullPointerException.class)
    public void aRegistryIsNeeded() {
        new MicrometerListener(null);
    }

    @Test(timeOut = 90_000)
    public void aTrainingNeedsNoMicrometer() throws Exception {
        Assert.assertEquals(
                new ForkedJvm().without("micrometer").succeed(WithoutMicrometer.class).strip(),
                "true io/micrometer/core/instrument/MeterRegistry");
    }

    /** Trains in a JVM without Micrometer. */
    static final class WithoutMicrometer {

        private WithoutMicrometer() {}

        public static void main(String[] args) {
            boolean trained = Training.run(Training.config().build(), Training.plain()).total() > 0;
            try {
                throw new IllegalStateException("" + Micrometer.listener());
            } catch (NoClassDefFoundError e) {
                System.out.println(trained + " " + e.getMessage());
            }
        }
    }

    private static DefaultTrainingConfig training(MeterRegistry registry) {
        return Training.plain()
                .addTrainingListeners(new MicrometerListener(registry, Tag.of("run", "test")));
    }

    private static CollectiveCounts train(ParallelConfig ranks, MeterRegistry registry) {
        return Training.run(ranks, training(registry));
    }

    private static ParallelConfig.Builder config() {
        return Training.config();
    }

    private static double millis(MeterRegistry registry, String name, String... tags) {
        return registry.get(name).tags(tags).timer().totalTime(TimeUnit.MILLISECONDS);
    }

    /** Uses Micrometer. */
    private static final class Micrometer {
        static TrainingListener listener() {
            return new MicrometerListener(new SimpleMeterRegistry());
        }
    }

    /** A training in which rank 1 is late. */
    private static final class Training {

        private Training() {}

        static ParallelConfig.Builder config() {
            return ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(2);
        }

        static DefaultTrainingConfig plain() {
            return Configs.of(Loss.l2Loss(), Configs.adam(0.01f));
        }

        static CollectiveCounts run(ParallelConfig ranks, DefaultTrainingConfig config) {
            try (Model model = Model.newInstance("measured");
                    NDManager manager = NDManager.newBaseManager()) {
                LambdaBlock late =
                        new LambdaBlock(
                                inputs -> {
                                    ParallelContext rank = ParallelContext.current();
                                    if (rank != null && rank.getRank() == 1) { // not for shapes
                                        LockSupport.parkNanos(SLEEP * 1_000_000L);
                                    }
                                    return inputs;
                                });
                model.setBlock(
                        new SequentialBlock()
                                .add(ColumnParallelLinear.builder().setUnits(6).build())
                                .add(late)
                                .add(RowParallelLinear.builder().setUnits(3).build()));
                // the same in all processes
                Initializer same = new ConstantInitializer(0.1f);
                model.getBlock().setInitializer(same, Parameter.Type.WEIGHT);
                ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
                try (trainer) {
                    fit(trainer, manager);
                }
                return trainer.getCollectiveCounts(); // with those of its close
            }
        }

        static void fit(Trainer trainer, NDManager manager) {
            trainer.initialize(new Shape(BATCH, 5));
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(manager.ones(new Shape(BATCHES * BATCH, 5)))
                            .optLabels(manager.ones(new Shape(BATCHES * BATCH, 3)))
                            .setSampling(BATCH, false)
                            .build();
            Unchecked.run(() -> EasyTrain.fit(trainer, EPOCHS, data, null));
        }
    }
}
