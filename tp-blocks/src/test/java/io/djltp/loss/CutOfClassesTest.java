package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.LossOptions;
import io.djltp.head.TopClasses;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

/** Losses and evaluators take the cut that the layout of the logits carries. */
public class CutOfClassesTest {

    private static final int ROWS = 6;
    private static final int CLASSES = 10;
    private static final VocabParallelCrossEntropyLoss LOSS =
            new VocabParallelCrossEntropyLoss("loss", new LossOptions(3, 0.1f, 0.01f));

    @DataProvider
    public Object[][] cuts() {
        Cut ranges =
                Cut.of(
                        CLASSES,
                        2,
                        rank ->
                                List.of(
                                        new ShardRange(2L * rank, 2),
                                        new ShardRange(4 + 3L * rank, 3)));
        return new Object[][] {{Cut.ofLengths(7, 2, 1)}, {ranges}};
    }

    @Test(dataProvider = "cuts", timeOut = 60_000)
    public void equalsWholeLogits(Cut cut) {
        Ranks.run(
                ParallelMode.TENSOR,
                cut.getRanks(),
                context -> {
                    try (NDManager manager = NDManager.newBaseManager()) {
                        check(context, manager, cut);
                    }
                    return null;
                });
    }

    private static void check(ParallelContext context, NDManager manager, Cut cut) {
        NDArray all = TrainingRun.random(manager, 3, ROWS, CLASSES);
        NDArray ids = TrainingRun.labels(manager, 5, ROWS, CLASSES);
        ids.set(new NDIndex(0), 3); // does not count
        NDList labels = new NDList(ids);
        NDArray logits = shard(context, all, cut);
        logits.setRequiresGradient(true);
        NDArray loss = LOSS.evaluate(labels, new NDList(logits));
        Autograd.backward(loss, loss.onesLike());

        NDArray expected = wholeGradient(all, ids);
        Assert.assertEquals(loss.getFloat(), wholeLoss(all, ids), 1e-6);
        Assert.assertEquals(
                Autograd.gradient(logits).toFloatArray(),
                part(context, expected, cut).toFloatArray(),
                1e-6f);
        TopClasses best = new VocabParallelTopK(4).evaluate(new NDList(logits));
        NDList sorted = all.topK(4, 1, true, true);
        Assert.assertEquals(best.classes().toLongArray(), sorted.get(1).toLongArray());
        for (int k = 1; k < CLASSES; k++) {
            long right = 0;
            for (int row = 1; row < ROWS; row++) {
                long label = ids.getLong(row);
                if (label != 3) {
                    NDArray own = all.get(row);
                    right += own.gt(own.getFloat(label)).countNonzero().getLong() < k ? 1 : 0;
                }
            }
            VocabParallelAccuracy accuracy = new VocabParallelAccuracy("top", k, 3);
            NDArray found = accuracy.evaluate(labels, new NDList(logits));
            Assert.assertEquals(found.countNonzero().getLong(), right, "k " + k);
        }
    }

    private static NDArray shard(ParallelContext context, NDArray all, Cut cut) {
        NDArray logits = part(context, all, cut);
        context.getPass().setLayout(logits, new ShardedLayout(cut));
        return logits;
    }

    private static NDArray part(ParallelContext context, NDArray all, Cut cut) {
        NDList parts = new NDList();
        for (ShardRange range : cut.getRanges(context.getTensorGroup().getRank())) {
            parts.add(all.get(new NDIndex().addAllDim().addSliceDim(range.start(), range.end())));
        }
        return NDArrays.concat(parts, 1).duplicate();
    }

    /** By the definition, row by row in float64. */
    private static double wholeLoss(NDArray all, NDArray ids) {
        double sum = 0;
        int counted = 0;
        for (int row = 0; row < ROWS; row++) {
            if (ids.getLong(row) != 3) {
                float[] z = all.get(row).toFloatArray();
                double normaliser = 0;
                double mean = 0;
                for (float each : z) {
                    normaliser += Math.exp(each);
                    mean += each / (double) CLASSES;
                }
                double log = Math.log(normaliser);
                sum += log - 0.9 * z[(int) ids.getLong(row)] - 0.1 * mean + 0.01 * log * log;
                counted++;
            }
        }
        return sum / counted;
    }

    /** By finite differences. */
    private static NDArray wholeGradient(NDArray all, NDArray ids) {
        NDManager manager = all.getManager();
        float[] z = all.toFloatArray();
        float[] gradient = new float[z.length];
        for (int i = 0; i < z.length; i++) {
            gradient[i] = (float) difference(manager, z, i, ids, all);
        }
        return manager.create(gradient, all.getShape());
    }

    private static double difference(
            NDManager manager, float[] z, int place, NDArray ids, NDArray all) {
        float kept = z[place];
        z[place] = kept + 0x1p-6f;
        double step = z[place];
        double above = wholeLoss(manager.create(z, all.getShape()), ids);
        z[place] = kept - 0x1p-6f;
        step -= z[place];
        double below = wholeLoss(manager.create(z, all.getShape()), ids);
        z[place] = kept;
        return (above - below) / step;
    }

    @Test(
            timeOut = 60_000,
            expectedExceptions = RuntimeException.class,
            expectedExceptionsMessageRegExp =
                    "(?s).*with some of them on several ranks: a softmax"
                            + " would count these several times.*")
    public void replicasAreRefused() {
        Ranks.run(
                ParallelMode.TENSOR,
                2,
                context -> {
                    try (NDManager manager = NDManager.newBaseManager()) {
                        NDArray all = TrainingRun.random(manager, 3, ROWS, CLASSES);
                        NDArray logits = shard(context, all, Cut.replicated(CLASSES, 2));
                        NDArray ids = TrainingRun.labels(manager, 5, ROWS, CLASSES);
                        return LOSS.evaluate(new NDList(ids), new NDList(logits));
                    }
                });
    }
}
