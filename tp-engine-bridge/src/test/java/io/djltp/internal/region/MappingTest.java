package io.djltp.internal.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestArrays;

import org.bytedeco.pytorch.Tensor;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntFunction;

/**
 * Every mapping, forward and backward, equals what libtorch's own autograd computes on one rank
 * that has the arrays of all: at any size, for any cut, for arrays and gradients that are not
 * contiguous, with as many collectives as it must take and no more, and nobody else's memory is
 * written.
 */
public class MappingTest {

    /** Even and uneven ranges, more ranks than elements, both kinds of axes. */
    private static final Shape[] SHAPES = {
        new Shape(12, 24),
        new Shape(7, 5),
        new Shape(3, 10),
        new Shape(10, 3),
        new Shape(1, 1),
        new Shape(6, 2, 7),
        new Shape(5, 3, 4),
        new Shape(2, 4, 2),
        new Shape(5)
    };

    private static final Shape OTHER = new Shape(3, 2); // the axes beside the one that is cut

    /** Makes an array of a shape, of a seed. */
    private interface Layout {
        NDArray make(NDManager manager, long seed, Shape shape);
    }

    /** Returns an array whose axes lie in memory in the other order. */
    private static NDArray transposed(NDManager manager, long seed, Shape shape) {
        Shape other = new Shape(shape.get(1), shape.get(0));
        return TestArrays.random(manager, seed, other).transpose();
    }

    /** Returns an array whose rows are one row in memory. */
    private static NDArray expanded(NDManager manager, long seed, Shape shape) {
        return TestArrays.random(manager, seed, new Shape(1, shape.get(1))).broadcast(shape);
    }

    @DataProvider
    public static Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void equalsTheSerialCalculation(int size) throws Exception {
        forAll(size, SHAPES, TestArrays::random);
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void transposedArraysAndGradients(int size) throws Exception {
        forAll(size, new Shape[] {new Shape(7, 5)}, MappingTest::transposed);
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void expandedArraysAndGradients(int size) throws Exception {
        forAll(size, new Shape[] {new Shape(7, 5)}, MappingTest::expanded);
    }

    private static void forAll(int size, Shape[] shapes, Layout layout) throws Exception {
        Mapping.run(
                size,
                (mappings, manager, group) -> {
                    for (Mapping mapping : Mapping.values()) {
                        for (Shape whole : shapes) {
                            int axis = mapping.axis(whole);
                            if (axis < whole.dimension()) {
                                Cut cut = Cut.balanced(whole.get(axis), size);
                                new Check(mapping, mappings, manager, group, whole, cut, layout)
                                        .run(true);
                            }
                        }
                    }
                });
    }

    @DataProvider
    public static Object[][] cuts() {
        List<Object[]> cases = new ArrayList<>();
        long[][] uneven = {{8}, {5, 3}, {1, 5, 2}, {3, 0, 4, 1}};
        for (int size = 1; size <= 4; size++) {
            int ranks = size;
            cases.add(new Object[] {"uneven", Cut.ofLengths(uneven[size - 1])});
            // three parts of unequal width, of each of which every rank has its share
            cases.add(
                    cut(
                            "stacked",
                            8 * size,
                            size,
                            r -> ranges(2 * r, 2, 2 * ranks + r, 1, 3 * ranks + 5 * r, 5)));
            cases.add(new Object[] {"replicated", Cut.replicated(5, size)});
            // two halves for half of the ranks each
            IntFunction<List<ShardRange>> halves =
                    r -> ranks == 1 ? ranges(0, 8) : ranges(r * 2 / ranks * 4, 4);
            cases.add(cut("grouped", 8, size, halves));
            // a query head of each rank, and the key and value that two ranks share
            int length = 2 * size + 3 * ((size + 1) / 2);
            IntFunction<List<ShardRange>> heads = r -> ranges(2 * ranks + r / 2 * 3, 3, 2 * r, 2);
            cases.add(cut("stacked and grouped", length, size, heads));
            // neighbours overlap, and lie in the shard in another order than on the axis
            IntFunction<List<ShardRange>> overlapping = r -> ranges(2 * r + 1, 2, 2 * r, 1);
            cases.add(cut("overlapping", 2 * size + 1, size, overlapping));
        }
        return cases.toArray(new Object[0][]);
    }

    private static Object[] cut(
            String name, long length, int size, IntFunction<List<ShardRange>> ranges) {
        return new Object[] {name, Cut.of(length, size, ranges)};
    }

    private static List<ShardRange> ranges(long... startsAndLengths) {
        List<ShardRange> ranges = new ArrayList<>();
        for (int i = 0; i < startsAndLengths.length; i += 2) {
            ranges.add(new ShardRange(startsAndLengths[i], startsAndLengths[i + 1]));
        }
        return ranges;
    }

    @Test(dataProvider = "cuts", timeOut = 60_000)
    public void anyCutEqualsTheSerialCalculation(String name, Cut cut) throws Exception {
        Mapping.run(
                cut.getRanks(),
                (mappings, manager, group) -> {
                    for (Mapping mapping : Mapping.values()) {
                        Shape whole = mapping.whole(OTHER, cut.getLength());
                        Layout layout = TestArrays::random;
                        new Check(mapping, mappings, manager, group, whole, cut, layout).run(false);
                    }
                });
    }

    /** A mapping of one rank, on an array whose shape is that of the whole. */
    private record Check(
            Mapping mapping,
            RegionMappings mappings,
            NDManager manager,
            Communicator group,
            Shape whole,
            Cut cut,
            Layout layout) {

        void run(boolean counted) {
            int rank = group.getRank();
            int size = group.getSize();
            String what = mapping + " of " + whole + " " + cut;
            List<NDArray> inputs = new ArrayList<>();
            List<NDArray> gradients = new ArrayList<>();
            boolean shared = mapping.isReplicated();
            for (int i = 0; i < size; i++) {
                Shape shape = mapping.inputShape(whole, cut, i);
                NDArray values = layout.make(manager, 100 + (shared ? 0 : i), shape).duplicate();
                inputs.add(i > 0 && shared ? inputs.get(0) : TestArrays.leaf(values));
                gradients.add(layout.make(manager, 200 + i, mapping.outputShape(whole, cut, i)));
            }
            NDArray values =
                    layout.make(
                            manager,
                            100 + (shared ? 0 : rank),
                            mapping.inputShape(whole, cut, rank));
            NDArray gradient = gradients.get(rank);
            NDArray before = gradient.duplicate();

            NDArray plain = mapping.apply(mappings, values, cut);
            Assert.assertFalse(TensorView.of(plain).requiresGradient(), what);
            NDArray input = TestArrays.leaf(values);
            CollectiveCounts start = group.getCounts();
            NDArray output = mapping.apply(mappings, input, cut);
            CollectiveCounts between = group.getCounts();
            Assert.assertTrue(TensorView.of(output).requiresGradient(), what);
            // straight into the mapping: the hook gets the caller's own gradient
            Autograd.backward(output, gradient);
            CollectiveCounts end = group.getCounts();

            NDArray expected = mapping.serial(inputs, rank, cut);
            TestArrays.assertSame(output, expected, what);
            TestArrays.assertSame(plain, expected, "without a gradient: " + what);
            try (Autograd.GradMode off = Autograd.gradMode(false)) {
                Assert.assertNotNull(off);
                TestArrays.assertSame(
                        mapping.apply(mappings, input, cut), expected, "unrecorded: " + what);
            }
            for (int i = 0; i < size; i++) {
                if (i == rank || mapping.sums()) {
                    Autograd.backward(mapping.serial(inputs, i, cut), gradients.get(i).duplicate());
                }
            }
            try (NDArray found = Autograd.gradient(inputs.get(rank))) {
                NDArray own = found == null ? manager.zeros(input.getShape()) : found;
                TestArrays.assertGradient(input, own, "the gradient of " + what);
            }
            TestArrays.assertSame(input, inputs.get(rank), "the input of " + what);
            TestArrays.assertSame(gradient, before, "the caller's gradient of " + what);
            if (counted) {
                int factor = size == 1 ? 0 : 1;
                Assert.assertEquals(
                        between.minus(start).total(), factor * mapping.forwardCalls, what);
                Assert.assertEquals(
                        end.minus(between).total(), factor * mapping.backwardCalls, what);
            }
        }
    }

    /** Only the first rank that holds a range sends it. */
    @Test(timeOut = 60_000)
    public void aReplicatedRangeIsSentOnce() {
        Cut cut = Cut.of(6, 4, r -> ranges(r / 2 * 3, 3));
        LibTorch.load();
        try (NDManager manager = NDManager.newBaseManager();
                CutAxis axis = new CutAxis(() -> null, 0, cut, 0, new AtomicReference<>())) {
            Tensor whole = TensorView.of(manager.zeros(new Shape(6))).tensor();
            Assert.assertEquals(axis.counts(whole), new long[] {3, 0, 3, 0});
        }
    }

    /** The first consumer of the output is no leaf: the mapping sees a gradient of its own. */
    @Test(timeOut = 60_000)
    public void aGradientThatIsNotTheCallersMayBeOwned() throws Exception {
        Mapping.run(
                3,
                (mappings, manager, group) -> {
                    NDArray leaf = TestArrays.leaf(manager.ones(new Shape(4, 2)));
                    // the gradient of a sum is one number, seen as an array: copied even if owned
                    NDArray loss = mappings.copyToRegion(leaf, true).sum();
                    Autograd.backward(loss, manager.create(group.getRank() + 1f));
                    TestArrays.assertGradient(leaf, manager.full(new Shape(4, 2), 6f), "");
                    for (Mapping mapping : Mapping.values()) {
                        Cut cut = Cut.balanced(4, 3);
                        Shape shape = mapping.inputShape(new Shape(4, 4), cut, group.getRank());
                        NDArray input = TestArrays.leaf(manager.ones(shape));
                        NDArray output = mapping.apply(mappings, input, cut);
                        NDArray used = TestArrays.times(output, 2);
                        Autograd.backward(used, manager.ones(used.getShape()));
                        boolean summed = mapping.sums() && !mapping.name().contains("SCATTER");
                        NDArray expected = manager.full(shape, summed ? 6f : 2f);
                        TestArrays.assertGradient(input, expected, "" + mapping);
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void reduceWorksInPlaceOnlyWhereItMay() throws Exception {
        Mapping.run(
                2,
                (mappings, manager, group) -> {
                    NDArray weight = TestArrays.leaf(manager.ones(new Shape(3, 2)));
                    NDArray product = manager.ones(new Shape(4, 3)).matMul(weight);
                    NDArray sum = mappings.reduceFromRegion(product, true);
                    // the product itself has become the sum
                    Assert.assertEquals(
                            TensorView.of(sum).address(), TensorView.of(product).address());
                    TestArrays.assertSame(sum, manager.full(new Shape(4, 2), 6f), "forward");
                    Autograd.backward(sum, manager.ones(new Shape(4, 2)));
                    TestArrays.assertGradient(weight, manager.full(new Shape(3, 2), 4f), "");

                    NDArray shared = manager.ones(new Shape(4, 3)).transpose();
                    NDArray other = mappings.reduceFromRegion(shared, true);
                    Assert.assertNotEquals(
                            TensorView.of(other).address(), TensorView.of(shared).address());
                    TestArrays.assertSame(shared, manager.ones(new Shape(3, 4)), "what has gaps");
                });
    }

    @Test(timeOut = 60_000)
    public void aSliceOfTheWrongLengthIsRefused() throws Exception {
        Mapping.run(
                4,
                (mappings, manager, group) -> {
                    NDArray slice = manager.ones(new Shape(2, 5));
                    int rank = group.getRank();
                    assertRefused(
                            () -> mappings.gatherFromRegion(slice, Cut.balanced(16, 4)),
                            "Axis 1 of the slice (2, 5) of rank %s must have length 4 for a whole"
                                    + " of 16 over 4 ranks",
                            rank);
                    assertRefused(
                            () ->
                                    mappings.gatherFromSequenceRegion(
                                            slice, Cut.balanced(4, 4), true),
                            "Axis 0 of the slice (2, 5) of rank %s must have length 1 for a whole"
                                    + " of 4 over 4 ranks",
                            rank);
                    assertRefused(
                            () -> mappings.scatterToRegion(slice, Cut.ofLengths(1, 1, 3, 1)),
                            "Axis 1 of (2, 5) of rank %s must have length 6 for a whole of 6 over"
                                    + " 4 ranks",
                            rank);
                    assertRefused(
                            () -> mappings.scatterToRegion(slice, Cut.ofLengths(3, 2)),
                            "A cut over 2 ranks is not one of a group of 4",
                            rank);
                });
    }

    private static void assertRefused(Assert.ThrowingRunnable call, String text, int rank) {
        Assert.assertEquals(Refusals.throwsArgument(call), text.formatted(rank));
    }
}
