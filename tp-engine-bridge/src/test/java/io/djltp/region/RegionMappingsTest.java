package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.RankThreads;
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

    /** What one rank does with its mappings. */
    private interface Body {
        void run(RegionMappings mappings, NDManager manager, int rank) throws Exception;
    }

    private static void run(Body body) throws Exception {
        RankThreads.run(
                SIZE,
                (communicator, manager) -> {
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        body.run(mappings, manager, communicator.getRank());
                    }
                });
    }

    /** Returns floats: {@code manager.full(shape, 6)} would be integers. */
    private static NDArray full(NDManager manager, Shape shape, float value) {
        return manager.full(shape, value);
    }

    private static NDArray leaf(NDManager manager, float value, long... shape) {
        return TestArrays.leaf(full(manager, new Shape(shape), value));
    }

    @Test(timeOut = 60_000)
    public void copySumsTheGradients() throws Exception {
        run(
                (mappings, manager, rank) -> {
                    NDArray input = leaf(manager, 1, 2, 3);
                    NDArray output = mappings.copyToRegion(input);
                    TestArrays.assertSame(output, manager.ones(new Shape(2, 3)), "forward");
                    Autograd.backward(output, full(manager, new Shape(2, 3), rank));
                    // 0 + 1 + 2 + 3
                    TestArrays.assertGradient(input, full(manager, new Shape(2, 3), 6), "backward");
                });
    }

    @Test(timeOut = 60_000)
    public void reduceSumsTheInputs() throws Exception {
        run(
                (mappings, manager, rank) -> {
                    NDArray input = leaf(manager, rank, 2, 3);
                    NDArray output = mappings.reduceFromRegion(input);
                    TestArrays.assertSame(output, full(manager, new Shape(2, 3), 6), "forward");
                    Autograd.backward(output, full(manager, new Shape(2, 3), 10 + rank));
                    TestArrays.assertGradient(
                            input, full(manager, new Shape(2, 3), 10 + rank), "backward");
                    TestArrays.assertSame(input, full(manager, new Shape(2, 3), rank), "the input");
                });
    }

    @Test(timeOut = 60_000)
    public void scatterTakesTheColumnOfTheRank() throws Exception {
        run(
                (mappings, manager, rank) -> {
                    NDArray input =
                            TestArrays.leaf(
                                    manager.arange((float) SIZE).broadcast(new Shape(8, SIZE)));
                    NDArray output = mappings.scatterToRegion(input, Cut.balanced(SIZE, SIZE));
                    TestArrays.assertSame(output, full(manager, new Shape(8, 1), rank), "forward");
                    Autograd.backward(output, full(manager, new Shape(8, 1), 5 * rank));
                    TestArrays.assertGradient(
                            input,
                            manager.arange(0f, 20f, 5f).broadcast(new Shape(8, SIZE)),
                            "backward");
                });
    }

    @Test(timeOut = 60_000)
    public void gatherPutsTheColumnsSideBySide() throws Exception {
        run(
                (mappings, manager, rank) -> {
                    NDArray input = leaf(manager, rank, 1, 2);
                    NDArray output = mappings.gatherFromRegion(input, Cut.balanced(8, SIZE));
                    Assert.assertEquals(output.getShape(), new Shape(1, 8));
                    TestArrays.assertValues(output, 0, 0, 1, 1, 2, 2, 3, 3);
                    NDArray gradient = manager.arange(8f).reshape(1, 8);
                    Autograd.backward(output, gradient);
                    TestArrays.assertGradient(
                            input, manager.create(new float[][] {{2 * rank, 2 * rank + 1}}), "");
                });
    }

    @Test(timeOut = 60_000)
    public void reduceScatterLeavesTheRowOfTheRank() throws Exception {
        run(
                (mappings, manager, rank) -> {
                    // rows 0, 1, 2, 3 of four columns
                    NDArray input =
                            TestArrays.leaf(
                                    manager.arange((float) SIZE)
                                            .reshape(SIZE, 1)
                                            .broadcast(new Shape(SIZE, 4))
                                            .duplicate());
                    NDArray output =
                            mappings.reduceScatterToSequenceRegion(input, Cut.balanced(SIZE, SIZE));
                    TestArrays.assertSame(
                            output, full(manager, new Shape(1, 4), 4 * rank), "forward");
                    Autograd.backward(output, full(manager, new Shape(1, 4), 7 * rank));
                    try (NDArray gradient = Autograd.gradient(input)) {
                        TestArrays.assertValues(
                                gradient, 0, 0, 0, 0, 7, 7, 7, 7, 14, 14, 14, 14, 21, 21, 21, 21);
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void gatherFromSequenceScattersTheSumOfTheGradients() throws Exception {
        run(
                (mappings, manager, rank) -> {
                    NDArray input = leaf(manager, rank, 1, 4);
                    NDArray output =
                            mappings.gatherFromSequenceRegion(
                                    input, Cut.balanced(SIZE, SIZE), true);
                    NDArray rows =
                            manager.arange((float) SIZE)
                                    .reshape(SIZE, 1)
                                    .broadcast(new Shape(SIZE, 4));
                    TestArrays.assertSame(output, rows, "forward");
                    Autograd.backward(output, rows.duplicate());
                    // row r of four ranks' gradients
                    TestArrays.assertGradient(
                            input, full(manager, new Shape(1, 4), 4 * rank), "backward");
                });
    }

    /** Two axes of different length: a mapping that took the last one would fail here. */
    @Test(timeOut = 60_000)
    public void scatterToSequenceTakesRows() throws Exception {
        run(
                (mappings, manager, rank) -> {
                    NDArray input = TestArrays.leaf(manager.arange(24f).reshape(8, 3));
                    NDArray output = mappings.scatterToSequenceRegion(input, Cut.balanced(8, SIZE));
                    NDArray rows = manager.arange(6f * rank, 6f * rank + 6).reshape(2, 3);
                    TestArrays.assertSame(output, rows, "forward");
                    Autograd.backward(output, rows.add(100));
                    TestArrays.assertGradient(
                            input, manager.arange(100f, 124f).reshape(8, 3), "backward");
                });
    }

    @Test(timeOut = 60_000)
    public void aSliceOfTheWrongLengthIsRefused() throws Exception {
        run(
                (mappings, manager, rank) -> {
                    NDArray slice = manager.ones(new Shape(2, 5));
                    String message =
                            Assert.expectThrows(
                                            IllegalArgumentException.class,
                                            () ->
                                                    mappings.gatherFromRegion(
                                                            slice, Cut.balanced(16, SIZE)))
                                    .getMessage();
                    Assert.assertEquals(
                            message,
                            "Axis 1 of the slice (2, 5) of rank "
                                    + rank
                                    + " must have length 4 for a whole of 16 over 4 ranks");
                    message =
                            Assert.expectThrows(
                                            IllegalArgumentException.class,
                                            () ->
                                                    mappings.gatherFromSequenceRegion(
                                                            slice, Cut.balanced(4, SIZE), true))
                                    .getMessage();
                    Assert.assertTrue(
                            message.startsWith("Axis 0 of the slice (2, 5) of rank " + rank),
                            message);
                    message =
                            Assert.expectThrows(
                                            IllegalArgumentException.class,
                                            () ->
                                                    mappings.scatterToRegion(
                                                            slice, Cut.ofLengths(1, 1, 3, 1)))
                                    .getMessage();
                    Assert.assertEquals(
                            message,
                            "Axis 1 of (2, 5) of rank "
                                    + rank
                                    + " must have length 6 for a whole of 6 over 4 ranks");
                    message =
                            Assert.expectThrows(
                                            IllegalArgumentException.class,
                                            () ->
                                                    mappings.scatterToRegion(
                                                            slice, Cut.ofLengths(3, 2)))
                                    .getMessage();
                    Assert.assertEquals(message, "A cut over 2 ranks is not one of a group of 4");
                });
    }
}
