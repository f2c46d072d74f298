package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;

import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.LossOptions;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestCases;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

/** Columns are those of a cut that has each class once, and the loss of logits is the same. */
public class ClassShardTest {

    private static final int CLASSES = 10;
    private static final long[] LABELS = {9, 0, 2, 7, 7};

    @DataProvider
    public Object[][] cuts() {
        return TestCases.product(HeadReference.cuts(CLASSES));
    }

    @Test(dataProvider = "cuts", timeOut = 60_000)
    public void lossAndGradientOfLogits(Cut cut) throws Exception {
        LossOptions options = new LossOptions(2, 0.1f, 0.01f);
        // logits are the weight, [classes, rows], which the reference can take a part of
        HeadReference data = new HeadReference(0, LABELS.length, CLASSES);
        ShardedCrossEntropy function = new ShardedCrossEntropy(options);
        RankThreads.run(
                cut.getRanks(),
                (group, manager) -> {
                    List<ShardRange> own = cut.getRanges(group.getRank());
                    NDArray all = data.weight(manager).transpose().duplicate();
                    NDArray labels = manager.create(LABELS);
                    ShardedCrossEntropy.Result expected =
                            function.evaluate(all, labels, Cut.ofLengths(CLASSES), null, true);
                    NDArray logits = data.weight(manager, own).transpose().duplicate();
                    ShardedCrossEntropy.Result actual =
                            function.evaluate(logits, labels, cut, group, true);
                    float loss = expected.value().getFloat();
                    Assert.assertEquals(actual.value().getFloat(), loss, 1e-6f);
                    NDArray places =
                            manager.create(
                                    HeadReference.places(own, 1).mapToLong(k -> k).toArray());
                    NDArray gradient = expected.gradient().transpose().get(places).transpose();
                    Assert.assertEquals(
                            actual.gradient().toFloatArray(), gradient.toFloatArray(), 1e-7f);
                });
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

    @DataProvider
    public Object[][] bad() {
        Cut descending =
                Cut.of(
                        CLASSES,
                        2,
                        rank ->
                                rank == 0
                                        ? List.of(new ShardRange(0, 4))
                                        : List.of(new ShardRange(7, 3), new ShardRange(4, 3)));
        return new Object[][] {
            {
                Cut.replicated(CLASSES, 2),
                "of 10, with some of them on several ranks: a softmax would count these several"
            },
            {descending, "which do not ascend: "},
            {Cut.balanced(CLASSES, 3), "The classes are cut over 3 ranks, but the group has 2"}
        };
    }

    @Test(dataProvider = "bad")
    public void cutsThatAreNone(Cut cut, String message) {
        Refusals.throwsArgument(() -> new ClassShard(cut, null, 0, 2), message);
    }

    @Test
    public void aClassWithoutAWeightHasNotThatOfAnother() {
        LossOptions options = LossOptions.DEFAULT.withClassWeights(2, 3);
        Assert.assertEquals(options.weightOf(1), 3.0);
        Assert.assertEquals(options.weightOf(LossOptions.DEFAULT_IGNORE_INDEX), 0.0);
        for (long label : new long[] {-1, 2, 1L << 32}) {
            Assert.expectThrows(IndexOutOfBoundsException.class, () -> options.weightOf(label));
        }
    }
}
