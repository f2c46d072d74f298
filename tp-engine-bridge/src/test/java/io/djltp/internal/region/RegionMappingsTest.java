package io.djltp.internal.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.internal.torch.Autograd;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.Test;

/**
 * The mappings of four ranks on arrays of which rank r holds r everywhere: results that one can
 * work out in one's head.
 */
public class RegionMappingsTest {

    private static final int SIZE = 4;

    private static NDArray full(NDManager manager, float value, long... shape) {
        return manager.full(new Shape(shape), value);
    }

    /** Returns rows 0, 1, 2, 3 of four columns, or columns of some rows. */
    private static NDArray counted(NDManager manager, boolean rows, long other, float step) {
        NDArray line = manager.arange(0f, SIZE * step, step);
        return rows
                ? line.reshape(SIZE, 1).broadcast(new Shape(SIZE, other)).duplicate()
                : line.broadcast(new Shape(other, SIZE)).duplicate();
    }

    private static void check(
            NDArray leaf, NDArray output, NDArray expected, NDArray above, NDArray gradient) {
        TestArrays.assertSame(output, expected, "forward");
        Autograd.backward(output, above);
        TestArrays.assertGradient(leaf, gradient, "backward");
    }

    @Test(timeOut = 60_000)
    public void whatEachRankGets() throws Exception {
        Cut four = Cut.balanced(SIZE, SIZE);
        Mapping.run(
                SIZE,
                (mappings, m, group) -> {
                    int rank = group.getRank();
                    NDArray x = TestArrays.leaf(full(m, 1, 2, 3));
                    // 0 + 1 + 2 + 3
                    check(
                            x,
                            mappings.copyToRegion(x),
                            full(m, 1, 2, 3),
                            full(m, rank, 2, 3),
                            full(m, 6, 2, 3));

                    x = TestArrays.leaf(full(m, rank, 2, 3));
                    check(
                            x,
                            mappings.reduceFromRegion(x),
                            full(m, 6, 2, 3),
                            full(m, 10 + rank, 2, 3),
                            full(m, 10 + rank, 2, 3));
                    TestArrays.assertSame(x, full(m, rank, 2, 3), "the input");

                    // the column of the rank
                    x = TestArrays.leaf(counted(m, false, 8, 1));
                    check(
                            x,
                            mappings.scatterToRegion(x, four),
                            full(m, rank, 8, 1),
                            full(m, 5 * rank, 8, 1),
                            counted(m, false, 8, 5));

                    // the columns side by side
                    x = TestArrays.leaf(full(m, rank, 1, 2));
                    check(
                            x,
                            mappings.gatherFromRegion(x, Cut.balanced(8, SIZE)),
                            m.create(new float[][] {{0, 0, 1, 1, 2, 2, 3, 3}}),
                            m.arange(8f).reshape(1, 8),
                            m.create(new float[][] {{2 * rank, 2 * rank + 1}}));

                    // the row of the rank, of the sum
                    x = TestArrays.leaf(counted(m, true, 4, 1));
                    check(
                            x,
                            mappings.reduceScatterToSequenceRegion(x, four),
                            full(m, 4 * rank, 1, 4),
                            full(m, 7 * rank, 1, 4),
                            counted(m, true, 4, 7));

                    // row r of four ranks' gradients
                    x = TestArrays.leaf(full(m, rank, 1, 4));
                    check(
                            x,
                            mappings.gatherFromSequenceRegion(x, four, true),
                            counted(m, true, 4, 1),
                            counted(m, true, 4, 1),
                            full(m, 4 * rank, 1, 4));

                    // two axes of different length: a mapping that took the last one would fail
                    x = TestArrays.leaf(m.arange(24f).reshape(8, 3));
                    NDArray rows = m.arange(6f * rank, 6f * rank + 6).reshape(2, 3);
                    check(
                            x,
                            mappings.scatterToSequenceRegion(x, Cut.balanced(8, SIZE)),
                            rows,
                            rows.add(100),
                            m.arange(100f, 124f).reshape(8, 3));
                });
    }

    @Test(timeOut = 60_000)
    public void aSliceOfTheWrongLengthIsRefused() throws Exception {
        Mapping.run(
                SIZE,
                (mappings, manager, group) -> {
                    NDArray slice = manager.ones(new Shape(2, 5));
                    int rank = group.getRank();
                    assertRefused(
                            () -> mappings.gatherFromRegion(slice, Cut.balanced(16, SIZE)),
                            "Axis 1 of the slice (2, 5) of rank %s must have length 4 for a whole"
                                    + " of 16 over 4 ranks",
                            rank);
                    assertRefused(
                            () ->
                                    mappings.gatherFromSequenceRegion(
                                            slice, Cut.balanced(4, SIZE), true),
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
        String message = Assert.expectThrows(IllegalArgumentException.class, call).getMessage();
        Assert.assertEquals(message, text.formatted(rank));
    }
}
