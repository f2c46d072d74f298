package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.nn.ClassificationHead;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** Sampled heads and heads with margins under a trainer. */
public class SampledHeadTrainingTest {

    private static final TrainerKind TWO = new TrainerKind(ParallelMode.TENSOR, 2);
    private static final Margin MARGIN = Margin.combined(8, 1.1f, 0.3f, 0.1f);

    /** So large that all classes are drawn. */
    private static final float ALL = 0.99f;

    private static Block fused(Consumer<ClassificationHead.Builder> options) {
        return FusedTraining.network(head -> options.accept(head.optFusedLoss(true)));
    }

    private static FusedTraining run(TrainerKind kind, Block block, Optimizer optimizer) {
        return FusedTraining.run(
                kind, block, FusedTraining.loss(new LossOptions(3, 0.1f, 0.01f)), optimizer);
    }

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {
            {new TrainerKind(ParallelMode.TENSOR, 1)},
            {TWO},
            {new TrainerKind(ParallelMode.TENSOR, 4)},
            {new TrainerKind(ParallelMode.MIXED, 3)},
            {new TrainerKind(ParallelMode.DATA, 1)}
        };
    }

    /** A share of 1 is the full softmax to the last bit. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aShareOfOneIsTheFullSoftmax(TrainerKind kind) {
        FusedTraining full = run(kind, fused(head -> {}), FusedTraining.sgd());
        FusedTraining one = run(kind, fused(head -> head.optSampleShare(1)), FusedTraining.sgd());
        Assert.assertEquals(one.losses, full.losses);
        for (int i = 0; i < full.weights.size(); i++) {
            Assert.assertEquals(one.weights.get(i), full.weights.get(i));
        }
    }

    /** Where the draw is of all classes, training is DJL's, with all of its optimizers. */
    @Test(
            dataProvider = "optimizers",
            dataProviderClass = HeadsEqualDjlTest.class,
            timeOut = 60_000)
    public void allClassesDrawnIsDjlsTraining(int number, Supplier<Optimizer> maker) {
        FusedTraining expected =
                run(TrainerKind.PLAIN, FusedTraining.network(head -> {}), maker.get());
        TrainerKind three = new TrainerKind(ParallelMode.TENSOR, 3);
        run(three, fused(head -> head.optSampleShare(ALL)), maker.get()).assertSame(expected);
    }

    /** Under DJL's trainer the layer's output is scaled cosines, and this loss adds the margin. */
    private static final class MarginLoss extends Loss {

        MarginLoss() {
            super("margin");
        }

        /** {@inheritDoc} */
        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            NDArray logits = predictions.singletonOrThrow();
            NDManager manager = logits.getManager();
            NDArray scale = manager.create(MARGIN.scale());
            NDArray cosines = logits.div(scale);
            NDArray angles = cosines.acos().mul(manager.create(MARGIN.m1()));
            angles = angles.add(manager.create(MARGIN.m2()));
            NDArray beyond = angles.cos().neg().sub(manager.create(2f));
            NDArray moved = NDArrays.where(angles.gt(Math.PI), beyond, angles.cos());
            NDArray raised = moved.sub(manager.create(MARGIN.m3())).mul(scale);
            NDArray ids = labels.singletonOrThrow();
            NDArray own = ids.oneHot(FusedTraining.CLASSES).toType(DataType.BOOLEAN, true);
            return Loss.softmaxCrossEntropyLoss()
                    .evaluate(labels, new NDList(NDArrays.where(own, raised, logits)));
        }
    }

    private static Block withMargin(float share) {
        return fused(head -> head.optMargin(MARGIN).optBias(false).optSampleShare(share));
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void marginsEqualDjlsAutograd(TrainerKind kind) {
        FusedTraining expected =
                FusedTraining.run(
                        TrainerKind.PLAIN, withMargin(1), new MarginLoss(), FusedTraining.sgd());
        for (float share : new float[] {1, ALL}) {
            Loss loss = FusedTraining.loss(LossOptions.DEFAULT);
            FusedTraining.run(kind, withMargin(share), loss, FusedTraining.sgd())
                    .assertSame(expected);
        }
    }

    /** Outside of training there is no margin, and the nearest class has the largest output. */
    @Test(timeOut = 60_000)
    public void evaluatesToScaledCosines() {
        List<float[]> losses = new ArrayList<>();
        for (int ranks = 0; ranks <= 3; ranks++) {
            TrainerKind kind =
                    ranks == 0 ? TrainerKind.PLAIN : new TrainerKind(ParallelMode.TENSOR, ranks);
            FusedTraining.use(
                    kind,
                    withMargin(0.5f),
                    (trainer, manager) -> losses.add(evaluate(trainer, manager)));
            ArrayAssert.assertClose(losses.get(ranks), losses.get(0), 1e-6, ranks + " ranks");
        }
    }

    private static float[] evaluate(Trainer trainer, NDManager manager) {
        NDList data = FusedTraining.list(FusedTraining.data(manager, 0));
        NDList labels = FusedTraining.list(FusedTraining.labels(manager, 0));
        NDList output = trainer.evaluate(data);
        float loss = trainer.getLoss().evaluate(labels, output).getFloat();
        VocabParallelAccuracy accuracy = new VocabParallelAccuracy(5);
        long right = accuracy.evaluate(labels, output).countNonzero().getLong();
        if (trainer instanceof ParallelTrainer) {
            Assert.assertEquals(rightInTraining(trainer, data, labels), right);
        } else {
            float[] logits = output.head().toFloatArray();
            ArrayAssert.assertClose(logits, cosines(trainer, data), 1e-6, "cosines");
        }
        return new float[] {loss, right};
    }

    /** Of features, by all classes, whatever is drawn. */
    private static long rightInTraining(Trainer trainer, NDList data, NDList labels) {
        long right;
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(data, labels);
            NDArray loss = trainer.getLoss().evaluate(labels, output);
            VocabParallelAccuracy accuracy = new VocabParallelAccuracy(5);
            right = accuracy.evaluate(labels, output).countNonzero().getLong();
            collector.backward(loss);
        }
        trainer.step();
        return right;
    }

    /** Row by row in float64, from the weights of the network. */
    private static float[] cosines(Trainer trainer, NDList data) {
        List<float[]> weights = TrainingRun.weights(trainer.getModel().getBlock());
        float[] x = data.head().toFloatArray();
        float[] logits = new float[FusedTraining.ROWS * FusedTraining.CLASSES];
        for (int row = 0; row < FusedTraining.ROWS; row++) {
            double[] hidden = new double[6];
            for (int j = 0; j < 6; j++) {
                double sum = weights.get(1)[j];
                for (int i = 0; i < FusedTraining.FEATURES; i++) {
                    sum +=
                            (double) x[row * FusedTraining.FEATURES + i]
                                    * weights.get(0)[j * FusedTraining.FEATURES + i];
                }
                hidden[j] = Math.tanh(sum);
            }
            for (int k = 0; k < FusedTraining.CLASSES; k++) {
                double dot = 0;
                double xx = 0;
                double ww = 0;
                for (int j = 0; j < 6; j++) {
                    double w = weights.get(2)[k * 6 + j];
                    dot += hidden[j] * w;
                    xx += hidden[j] * hidden[j];
                    ww += w * w;
                }
                logits[row * FusedTraining.CLASSES + k] =
                        (float) (MARGIN.scale() * dot / Math.sqrt(xx * ww));
            }
        }
        return logits;
    }

    /** No more collectives than of the full softmax: largest logits, sums, feature gradient. */
    @Test(timeOut = 60_000)
    public void communicatesOncePerQuantity() {
        FusedTraining.use(
                TWO,
                withMargin(0.4f),
                (trainer, manager) -> {
                    ParallelTrainer parallel = (ParallelTrainer) trainer;
                    for (int i = 0; i < 2; i++) { // the third step compares no replicas
                        TrainingRun.backward(
                                trainer,
                                FusedTraining.data(manager, 0),
                                FusedTraining.labels(manager, 0));
                        trainer.step();
                    }
                    CollectiveCounts before = parallel.getCollectiveCounts();
                    TrainingRun.backward(
                            trainer,
                            FusedTraining.data(manager, 0),
                            FusedTraining.labels(manager, 0));
                    trainer.step();
                    CollectiveCounts counts = parallel.getCollectiveCounts().minus(before);
                    Assert.assertEquals(counts.get(Collective.ALL_REDUCE), 3);
                    Assert.assertEquals(counts.total(), 3);
                });
    }

    /** The seed alone decides what is drawn, and what is learned. */
    @Test(timeOut = 60_000)
    public void theSeedDecides() {
        FusedTraining first = sampled(1);
        Assert.assertEquals(sampled(1).losses, first.losses);
        Assert.assertNotEquals(sampled(2).losses, first.losses);
        for (float loss : first.losses) {
            Assert.assertTrue(loss > 0 && loss < 4, "a loss of " + loss);
        }
    }

    private static FusedTraining sampled(long seed) {
        return sampled(TWO, 0.5f, seed, FusedTraining.sgd());
    }

    private static FusedTraining sampled(
            TrainerKind kind, float share, long seed, Optimizer optimizer) {
        Block block = fused(head -> head.optSampleShare(share).optSampleSeed(seed));
        return run(kind, block, optimizer);
    }

    @DataProvider
    public Object[][] groups() {
        return new Object[][] {
            {new TrainerKind(ParallelMode.TENSOR, 2)},
            {new TrainerKind(ParallelMode.TENSOR, 3)},
            {new TrainerKind(ParallelMode.TENSOR, 4)},
            {new TrainerKind(ParallelMode.MIXED, 2)},
            {new TrainerKind(ParallelMode.MIXED, 4)}
        };
    }

    /** What is drawn, and what is learned, does not depend on the number of ranks. */
    @Test(dataProvider = "groups", timeOut = 60_000)
    public void equalsOneRank(TrainerKind kind) {
        TrainerKind one = new TrainerKind(ParallelMode.TENSOR, 1);
        for (float share : new float[] {0.1f, 0.5f}) { // of 23 classes, uneven over the ranks
            sampled(kind, share, 1, FusedTraining.sgd())
                    .assertSame(sampled(one, share, 1, FusedTraining.sgd()));
            sampled(kind, share, 1, adagrad()).assertSame(sampled(one, share, 1, adagrad()));
        }
    }

    private static Optimizer adagrad() {
        return RowwiseAdagrad.builder().optLearningRateTracker(Tracker.fixed(0.1f)).build();
    }

    @DataProvider
    public Object[][] bad() {
        Consumer<ClassificationHead.Builder> notFused = head -> head.optSampleShare(0.5f);
        Consumer<ClassificationHead.Builder> notFusedEither =
                head -> head.optMargin(MARGIN).optBias(false);
        Consumer<ClassificationHead.Builder> zero =
                head -> head.optFusedLoss(true).optSampleShare(0);
        Consumer<ClassificationHead.Builder> more =
                head -> head.optFusedLoss(true).optSampleShare(1.5f);
        Consumer<ClassificationHead.Builder> bias =
                head -> head.optFusedLoss(true).optMargin(MARGIN);
        Consumer<ClassificationHead.Builder> noNegatives =
                head -> head.optFusedLoss(true).optSampleShare(0.02f);
        return new Object[][] {
            {
                noNegatives,
                "A sample share of 0.02 of 23 classes leaves no negatives: it is no class. The"
                        + " least share is 0.0653"
            },
            {notFused, "exclude optFusedLoss(false)"},
            {notFusedEither, "exclude optFusedLoss(false)"},
            {zero, "above 0 and up to 1, not 0.0"},
            {more, "above 0 and up to 1, not 1.5"},
            {bias, "set optBias(false) with optMargin"}
        };
    }

    @Test(dataProvider = "bad")
    public void badOptionsAreRefused(Consumer<ClassificationHead.Builder> head, String message) {
        try {
            FusedTraining.network(head);
            Assert.fail("no error");
        } catch (IllegalArgumentException e) {
            Assert.assertTrue(e.getMessage().contains(message), e.getMessage());
        }
    }
}
