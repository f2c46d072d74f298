package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.TestCases;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;

/** A weight whose gradient is there is updated as DJL's optimizers update it. */
@SuppressWarnings("try") // a scope is used by being open
public class WeightUpdateTest extends RecordedTest {

    private static final int STEPS = 50;
    private static final double TOLERANCE = 1e-6; // of the largest element
    private static final float EPSILON = 1e-6f;

    /** A rate that changes in every step. */
    private static Tracker rate() {
        return step -> 0.1f / (1 + step % 7);
    }

    @DataProvider
    public Object[][] cases() {
        WeightUpdate.Settings[] settings = {
            WeightUpdate.Settings.DEFAULT,
            new WeightUpdate.Settings(0.1f, 1, -1),
            new WeightUpdate.Settings(0, 1, 0), // only negative gradients are left
            new WeightUpdate.Settings(0, 0.25f, 0.125f),
            new WeightUpdate.Settings(0.1f, 3, 0.5f)
        };
        return TestCases.product(ReferenceUpdate.Kind.OF_DJL.toArray(), settings);
    }

    /** Fifty steps; now and then there is no gradient, which DJL takes for zero. */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void equalsDjl(ReferenceUpdate.Kind rule, WeightUpdate.Settings settings) {
        for (long[] shape : new long[][] {{}, {9}, {7, 5}, {3, 2, 4}}) {
            assertSame(rule, settings, new Shape(shape), DataType.FLOAT32, false);
            assertSame(rule, settings, new Shape(shape), DataType.FLOAT32, true);
        }
        assertSame(rule, settings, new Shape(7, 5), DataType.FLOAT64, true);
    }

    /** Weights that do not fit into a cache are updated some rows at a time. */
    @Test(timeOut = 60_000)
    public void equalsDjlOnLargeWeights() {
        int threads = Autograd.getThreads();
        Autograd.setThreads(1);
        try {
            for (ReferenceUpdate.Kind rule : ReferenceUpdate.Kind.OF_DJL) {
                WeightUpdate.Settings all = new WeightUpdate.Settings(0.1f, 3, 0.5f);
                assertSame(rule, all, new Shape(2, 40_001), DataType.FLOAT32, true);
                assertSame(rule, all, new Shape(70_003), DataType.FLOAT32, false);
            }
        } finally {
            Autograd.setThreads(threads);
        }
    }

    private static void assertSame(
            ReferenceUpdate.Kind rule,
            WeightUpdate.Settings settings,
            Shape shape,
            DataType type,
            boolean missing) {
        int steps = shape.size() < 1000 ? STEPS : 3;
        Random random = new Random(5);
        Optimizer djl = ReferenceUpdate.djl(rule, settings, rate());
        try (NDManager manager = NDManager.newBaseManager();
                WeightUpdate update = rule.update(settings)) {
            NDArray expected = random(manager, random, shape, type);
            NDArray weight = expected.duplicate();
            for (int step = 1; step <= steps; step++) {
                boolean none = missing && step % 3 != 1;
                try (NDManager pass = manager.newSubManager()) {
                    NDArray gradient =
                            none ? pass.zeros(shape, type) : random(pass, random, shape, type);
                    djl.update("weight", expected, gradient);
                    update.begin(rate().getNewValue(step), step);
                    update.run(weight, none ? null : gradient);
                }
            }
            assertClose(weight, expected, TOLERANCE, shape + " " + type + " " + missing);
        }
    }

    private static NDArray random(NDManager manager, Random random, Shape shape, DataType type) {
        float[] values = new float[(int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = 2 * random.nextFloat() - 1;
        }
        return manager.create(values, shape).toType(type, false);
    }

    private static void assertClose(NDArray actual, NDArray expected, double bound, String what) {
        double largest = expected.abs().toType(DataType.FLOAT64, false).max().getDouble();
        double difference =
                actual.sub(expected).abs().toType(DataType.FLOAT64, false).max().getDouble();
        Assert.assertTrue(difference <= bound * largest, what + ": " + difference / largest);
    }

    /** No gradient, no state, no weight decay: nothing is computed and nothing kept. */
    @Test
    public void nothingIsKeptOfAParameterThatNeverHasAGradient() {
        WeightUpdate.Settings none = WeightUpdate.Settings.DEFAULT;
        List<WeightUpdate> updates = new ArrayList<>(List.of(WeightUpdate.adagrad(none, 0)));
        ReferenceUpdate.Kind.OF_DJL.forEach(rule -> updates.add(rule.update(none)));
        for (WeightUpdate each : updates) {
            try (NDManager manager = NDManager.newBaseManager();
                    WeightUpdate update = each) {
                NDArray weight = manager.create(new float[] {1, 2});
                update.begin(1, 1);
                update.run(weight, null);
                Assert.assertEquals(weight.toFloatArray(), new float[] {1, 2});
                Assert.assertEquals(update.getState(manager), Map.of());
            }
        }
    }

    /** By hand: a gradient of 0.5 for a weight of 2, twice, at rates of 0.1 and 0.2. */
    @Test
    public void byHand() {
        WeightUpdate.Settings decay = new WeightUpdate.Settings(0.1f, 1, -1);
        // gradient with decay 0.7: 2 - 0.07 = 1.93; 0.693: 1.93 - 0.1386
        assertTwoSteps(WeightUpdate.sgd(decay, 0), 1.93, 1.7914);
        // state 0.07, then 0.5 * 0.07 + 0.2 * 0.693 = 0.1736
        assertTwoSteps(WeightUpdate.sgd(decay, 0.5f), 1.93, 1.7564);
        // the first steps of Adam move by the rate; a gradient that stays does so in all
        WeightUpdate.Settings none = WeightUpdate.Settings.DEFAULT;
        assertTwoSteps(WeightUpdate.adam(none, 0.9f, 0.999f, 0, false), 1.9, 1.7);
        // 2 - 0.1 * 0.1 * 2 - 0.1 = 1.88; 1.88 - 0.2 * 0.1 * 1.88 - 0.2
        assertTwoSteps(WeightUpdate.adam(decay, 0.9f, 0.999f, 0, true), 1.88, 1.6424);
        // 0.5 / sqrt(0.25) = 1, then 0.5 / sqrt(0.5)
        double second = 1.9 - 0.2 * 0.5 / Math.sqrt(0.5);
        assertTwoSteps(WeightUpdate.rowwiseAdagrad(none, 0), 1.9, second);
        assertTwoSteps(WeightUpdate.adagrad(none, 0), 1.9, second);
        // 0.5 / (0.5 + 1), then 0.5 / (sqrt(0.5) + 1)
        double moved = 2 - 0.1 / 3;
        assertTwoSteps(WeightUpdate.adagrad(none, 1), moved, moved - 0.1 / (1 + Math.sqrt(0.5)));
    }

    private static void assertTwoSteps(WeightUpdate update, double first, double second) {
        try (update;
                NDManager manager = NDManager.newBaseManager()) {
            NDArray weight = manager.create(new float[] {2, 2}, new Shape(1, 2));
            double[] expected = {first, second};
            for (int i = 0; i < 2; i++) {
                update.begin(0.1f * (i + 1), i + 1);
                update.run(weight, manager.create(new float[] {0.5f, 0.5f}, new Shape(1, 2)));
                Assert.assertEquals(weight.getFloat(0, 0), expected[i], 1e-6);
                Assert.assertEquals(weight.getFloat(0, 1), expected[i], 1e-6);
            }
        }
    }

    /** A weight in 16 bits is that of 32 bits, rounded after each step; its state has 32 bits. */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void sixteenBits(ReferenceUpdate.Kind rule, WeightUpdate.Settings settings) {
        Random random = new Random(1);
        Shape shape = new Shape(11, 3);
        try (NDManager manager = NDManager.newBaseManager();
                WeightUpdate wide = rule.update(settings);
                WeightUpdate narrow = rule.update(settings)) {
            NDArray weight = random(manager, random, shape, DataType.FLOAT16);
            for (int step = 1; step <= 5; step++) {
                NDArray gradient = random(manager, random, shape, DataType.FLOAT16);
                NDArray expected = weight.toType(DataType.FLOAT32, true);
                wide.begin(0.1f, step);
                narrow.begin(0.1f, step);
                wide.run(expected, step == 3 ? null : gradient.toType(DataType.FLOAT32, true));
                narrow.run(weight, step == 3 ? null : gradient);
                Assert.assertEquals(
                        weight.toType(DataType.FLOAT32, true),
                        expected.toType(DataType.FLOAT16, true).toType(DataType.FLOAT32, true));
            }
            narrow.getState(manager)
                    .values()
                    .forEach(each -> Assert.assertEquals(each.getDataType(), DataType.FLOAT32));
        }
    }

    /** Rows that are cut over ranks, unevenly, move as they would whole. */
    @Test(timeOut = 60_000)
    public void rowwiseAdagradOfRowsThatAreCut() throws Exception {
        for (WeightUpdate.Settings settings :
                List.of(WeightUpdate.Settings.DEFAULT, new WeightUpdate.Settings(0.1f, 3, 0.5f))) {
            Cut twoRanges =
                    Cut.of(
                            5,
                            2,
                            rank ->
                                    rank == 0
                                            ? List.of(new ShardRange(3, 2), new ShardRange(0, 1))
                                            : List.of(new ShardRange(1, 2)));
            // columns that two ranks have count once
            Cut overlapping = Cut.of(5, 3, rank -> List.of(new ShardRange(rank, 3)));
            List<Cut> cuts =
                    List.of(
                            Cut.ofLengths(5),
                            Cut.ofLengths(3, 2),
                            Cut.ofLengths(1, 1, 3),
                            twoRanges,
                            overlapping,
                            Cut.replicated(5, 2));
            for (Cut cut : cuts) {
                for (boolean missing : new boolean[] {false, true}) {
                    assertCut(settings, cut, missing);
                }
            }
        }
    }

    private static void assertCut(WeightUpdate.Settings settings, Cut cut, boolean missing)
            throws Exception {
        Shape shape = new Shape(4, 5);
        RankThreads.run(
                cut.getRanks(),
                (group, manager) -> {
                    List<ShardRange> own = cut.getRanges(group.getRank());
                    Random random = new Random(2);
                    NDArray weight = random(manager, random, shape, DataType.FLOAT32);
                    NDArray shard = columns(weight, own);
                    try (WeightUpdate whole = WeightUpdate.rowwiseAdagrad(settings, EPSILON);
                            WeightUpdate update = WeightUpdate.rowwiseAdagrad(settings, EPSILON)) {
                        update.setRowsCut(group, shape, 1, cut);
                        for (int step = 1; step <= STEPS; step++) {
                            NDArray gradient = random(manager, random, shape, DataType.FLOAT32);
                            for (ShardRange range : cut.getRanges(0)) {
                                if (missing) { // the first rank has none
                                    gradient.set(index(range), 0);
                                }
                            }
                            boolean none = missing && group.getRank() == 0;
                            whole.begin(0.1f, step);
                            update.begin(0.1f, step);
                            update.run(shard, none ? null : columns(gradient, own));
                            whole.run(weight, gradient);
                        }
                    }
                    assertClose(
                            shard,
                            columns(weight, own),
                            TOLERANCE,
                            group.getRank() + cut.toString());
                });
    }

    private static NDArray columns(NDArray whole, List<ShardRange> ranges) {
        NDList parts = new NDList();
        ranges.forEach(range -> parts.add(whole.get(index(range))));
        return parts.size() == 1 ? parts.head().duplicate() : NDArrays.concat(parts, 1);
    }

    private static NDIndex index(ShardRange range) {
        return new NDIndex().addAllDim().addSliceDim(range.start(), range.end());
    }

    /** What is left after close is the view of it that the test has. */
    @Test
    public void closingFreesTheState() {
        WeightUpdate.Settings settings = WeightUpdate.Settings.DEFAULT;
        assertFreed(manager, ReferenceUpdate.Kind.MOMENTUM.update(settings), Set.of("momentum"));
        assertFreed(
                manager, ReferenceUpdate.Kind.ADAM.update(settings), Set.of("mean", "variance"));
        assertFreed(manager, WeightUpdate.rowwiseAdagrad(settings, EPSILON), Set.of("sums"));
    }

    private static void assertFreed(NDManager manager, WeightUpdate update, Set<String> names) {
        update.begin(0.1f, 1);
        update.run(manager.ones(new Shape(3, 2)), manager.ones(new Shape(3, 2)));
        Map<String, NDArray> state = update.getState(manager);
        Assert.assertEquals(state.keySet(), names);
        update.close();
        for (NDArray array : state.values()) {
            Assert.assertEquals(TensorView.of(array).tensor().use_count(), 1L);
        }
    }

    /** What a gradient is dropped to is what it was before the first backward pass. */
    @Test
    public void aGradientThatIsDroppedIsNone() {
        try (Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray leaf = manager.create(new float[] {1, 2});
            Autograd.dropGradient(leaf); // of no leaf
            leaf.setRequiresGradient(true);
            Autograd.dropGradient(leaf); // there is none
            for (int pass = 0; pass < 2; pass++) {
                NDArray sum = leaf.mul(leaf).sum();
                Autograd.backward(sum, sum.onesLike());
                try (NDArray gradient = Autograd.gradient(leaf)) {
                    Assert.assertEquals(gradient.toFloatArray(), new float[] {2, 4});
                }
                Autograd.dropGradient(leaf);
                Assert.assertNull(Autograd.gradient(leaf));
            }
        }
    }
}
