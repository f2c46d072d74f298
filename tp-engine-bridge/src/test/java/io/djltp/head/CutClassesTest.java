package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.SplittableRandom;

/** Losses, ranks of labels and best classes are the same at every cut that has each class once. */
public class CutClassesTest {

    private static final int ROWS = 5;
    private static final int FEATURES = 4;
    private static final int CLASSES = 10;
    private static final LossOptions EVERYTHING = new LossOptions(2, 0.1f, 0.01f);
    private static final long[] LABELS = {9, 0, 2, 7, 7};

    @DataProvider
    public Object[][] cuts() {
        Cut ranges =
                Cut.of(
                        CLASSES,
                        2,
                        rank ->
                                List.of(
                                        new ShardRange(2L * rank, 2),
                                        new ShardRange(4L + rank, 1),
                                        new ShardRange(6L + 2L * rank, 2)));
        return new Object[][] {
            {Cut.balanced(CLASSES, 3)}, {Cut.ofLengths(7, 2, 1)}, {Cut.ofLengths(1, 0, 9)}, {ranges}
        };
    }

    private static NDArray random(NDManager manager, long seed, long... shape) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[(int) new Shape(shape).size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = random.nextInt(-4, 5) / 2f; // many equal logits
        }
        return manager.create(values, new Shape(shape));
    }

    /** Returns a rank's part of an array along an axis. */
    private static NDArray shard(NDArray all, int axis, Cut cut, Communicator group) {
        NDList parts = new NDList();
        for (ShardRange range : cut.getRanges(group.getRank())) {
            NDIndex index = new NDIndex();
            if (axis == 1) {
                index.addAllDim();
            }
            parts.add(all.get(index.addSliceDim(range.start(), range.end())));
        }
        return NDArrays.concat(parts, axis).duplicate();
    }

    @Test(dataProvider = "cuts", timeOut = 60_000)
    public void lossAndGradientOfLogits(Cut cut) throws Exception {
        RankThreads.run(
                cut.getRanks(),
                (group, manager) -> {
                    NDArray all = random(manager, 1, ROWS, CLASSES);
                    NDArray labels = manager.create(LABELS);
                    ShardedCrossEntropy function = new ShardedCrossEntropy(EVERYTHING);
                    ShardedCrossEntropy.Result expected =
                            function.evaluate(all, labels, Cut.ofLengths(CLASSES), null, true);
                    NDArray logits = shard(all, 1, cut, group);
                    ShardedCrossEntropy.Result actual =
                            function.evaluate(logits, labels, cut, group, true);
                    Assert.assertEquals(
                            actual.value().getFloat(), expected.value().getFloat(), 1e-6f);
                    NDArray gradient = shard(expected.gradient(), 1, cut, group);
                    Assert.assertEquals(
                            actual.gradient().toFloatArray(), gradient.toFloatArray(), 1e-7f);
                    NDArray recorded = function.record(all, labels);
                    Assert.assertEquals(recorded.getFloat(), expected.value().getFloat(), 1e-6f);
                });
    }

    @Test(dataProvider = "cuts", timeOut = 60_000)
    public void evaluation(Cut cut) throws Exception {
        RankThreads.run(
                cut.getRanks(),
                (group, manager) -> {
                    NDArray x = random(manager, 2, ROWS, FEATURES);
                    NDArray weight = random(manager, 3, CLASSES, FEATURES);
                    NDArray bias = random(manager, 4, CLASSES);
                    NDArray labels = manager.create(LABELS);
                    NDArray w = shard(weight, 0, cut, group);
                    NDArray b = shard(bias, 0, cut, group);
                    try (ChunkedEvaluation one =
                                    new ChunkedEvaluation(
                                            null, Cut.ofLengths(CLASSES), 1 << 20, 0, null);
                            ChunkedEvaluation chunks =
                                    new ChunkedEvaluation(group, cut, 1 << 20, 2, null)) {
                        Assert.assertEquals(
                                chunks.loss(x, w, b, labels, EVERYTHING).getFloat(),
                                one.loss(x, weight, bias, labels, EVERYTHING).getFloat(),
                                1e-6f);
                        NDArray logits = chunks.logits(x, w, b);
                        long[] before = one.countBefore(x, weight, bias, labels).toLongArray();
                        Assert.assertEquals(
                                chunks.countBefore(x, w, b, labels).toLongArray(), before);
                        Assert.assertEquals(
                                chunks.countBefore(logits, null, null, labels).toLongArray(),
                                before);
                        for (int k = 1; k <= CLASSES; k++) {
                            TopClasses best = one.topK(x, weight, bias, k, true);
                            assertSame(chunks.topK(x, w, b, k, true), best);
                            assertSame(chunks.topK(logits, null, null, k, true), best);
                        }
                    }
                });
    }

    private static void assertSame(TopClasses actual, TopClasses expected) {
        Assert.assertEquals(actual.classes().toLongArray(), expected.classes().toLongArray());
        Assert.assertEquals(actual.logits().toFloatArray(), expected.logits().toFloatArray());
        Assert.assertEquals(
                actual.logProbabilities().toFloatArray(),
                expected.logProbabilities().toFloatArray(),
                1e-6f);
    }

    @Test(dataProvider = "cuts")
    @SuppressWarnings("try") // a scope is used by being open
    public void columnsAndClasses(Cut cut) {
        try (NDManager manager = NDManager.newBaseManager();
                TorchScope scope = TorchScope.open()) {
            for (int rank = 0; rank < cut.getRanks(); rank++) {
                ClassShard shard = new ClassShard(cut, null, rank, cut.getRanks());
                NDArray columns =
                        manager.arange((int) shard.length()).toType(DataType.INT64, false);
                NDArray classes =
                        TensorView.toArray(
                                shard.classesOf(TensorView.of(columns).tensor()), manager);
                long next = 0;
                for (long each : classes.toLongArray()) {
                    Assert.assertEquals(shard.columnOf(each), next);
                    Assert.assertEquals(shard.columnsBefore(each), next++);
                }
                Assert.assertEquals(next, shard.length());
            }
        }
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp =
                    "The classes are cut .* of 10, with some of them on"
                            + " several ranks: a softmax would count these several times.*")
    public void replicasAreRefused() {
        new ClassShard(Cut.replicated(CLASSES, 2), null, 0, 2);
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = "Rank 1 has the classes .* which do not ascend: .*")
    public void descendingRangesAreRefused() {
        Cut cut =
                Cut.of(
                        CLASSES,
                        2,
                        rank ->
                                rank == 0
                                        ? List.of(new ShardRange(0, 4))
                                        : List.of(new ShardRange(7, 3), new ShardRange(4, 3)));
        new ClassShard(cut, null, 0, 2);
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp =
                    "The classes are cut over 2 ranks, but the group has 3")
    public void anotherNumberOfRanksIsRefused() {
        new ClassShard(Cut.balanced(CLASSES, 2), null, 0, 3);
    }
}
