package io.djltp.llm.tune;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.training.GradientCollector;
import ai.djl.training.dataset.Batch;

import io.djltp.training.ParallelTrainer;

import java.util.List;
import java.util.stream.LongStream;

/** Steps and evaluations of which the loss is the mean over all labels of several batches. */
public final class TuningSteps {

    private TuningSteps() {}

    /**
     * Trains one step on several batches, as on one large batch, and closes them. {@link
     * ParallelTrainer#step} is called once, after all gradients are added.
     *
     * @param trainer the trainer, whose loss is a mean over the labels that are not {@link
     *     TuningData#IGNORED}
     * @param batches one batch or more
     * @return the mean loss over all labels, before the step
     */
    public static float step(ParallelTrainer trainer, List<Batch> batches) {
        long[] labels = batches.stream().mapToLong(TuningSteps::labels).toArray();
        long all = LongStream.of(labels).sum();
        double sum = 0;
        for (int i = 0; i < labels.length; i++) {
            try (Batch batch = batches.get(i);
                    GradientCollector collector = trainer.newGradientCollector()) {
                NDList predictions = trainer.forward(batch.getData(), batch.getLabels());
                NDArray loss = trainer.getLoss().evaluate(batch.getLabels(), predictions);
                float share = (float) labels[i] / all;
                collector.backward(share == 1 ? loss : loss.mul(share));
                sum += (double) loss.getFloat() * labels[i];
            }
        }
        trainer.step();
        return (float) (sum / all);
    }

    /**
     * Evaluates batches, and closes them.
     *
     * @param trainer the trainer
     * @param batches the batches
     * @return the mean loss over all labels; its exponential is the perplexity
     */
    public static double evaluate(ParallelTrainer trainer, Iterable<Batch> batches) {
        double sum = 0;
        long all = 0;
        for (Batch each : batches) {
            try (Batch batch = each) {
                NDList predictions = trainer.evaluate(batch.getData());
                NDArray loss = trainer.getLoss().evaluate(batch.getLabels(), predictions);
                long labels = labels(batch);
                sum += (double) loss.getFloat() * labels;
                all += labels;
            }
        }
        return sum / all;
    }

    private static long labels(Batch batch) {
        long[] labels = batch.getLabels().singletonOrThrow().toLongArray();
        return LongStream.of(labels).filter(label -> label != TuningData.IGNORED).count();
    }
}
