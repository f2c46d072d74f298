package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;

/** Rows go to the ranks that they are for, and their gradients come back. */
public class MappingExchangeTest {

    private static final int COLUMNS = 3;

    /** Lengths[from][to]. */
    private static long[][] lengths(String kind, int size) {
        long[][] lengths = new long[size][size];
        for (int from = 0; from < size; from++) {
            for (int to = 0; to < size; to++) {
                lengths[from][to] =
                        switch (kind) {
                            case "even" -> 2;
                            case "uneven" -> (2 * from + 3 * to + 1) % 4;
                            case "all to the last" -> to == size - 1 ? from + 1 : 0;
                            case "a rank has none" -> from == 0 ? 0 : to + 1;
                            default -> 0;
                        };
            }
        }
        return lengths;
    }

    @DataProvider
    public static Object[][] exchanges() {
        String[] kinds = {"even", "uneven", "all to the last", "a rank has none", "nothing at all"};
        return Arrays.stream(kinds)
                .flatMap(
                        kind ->
                                Arrays.stream(new Integer[] {1, 2, 3, 4})
                                        .map(size -> new Object[] {kind, size}))
                .toArray(Object[][]::new);
    }

    @Test(dataProvider = "exchanges", timeOut = 60_000)
    public void rowsAndTheirGradients(String kind, int size) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    long[][] lengths = lengths(kind, size);
                    NDArray input = rows(manager, rank, lengths[rank]);
                    checkPass(rank, lengths, communicator, manager, input);
                });
    }

    /** The same from half of the columns of another array. */
    @Test(dataProvider = "exchanges", timeOut = 60_000)
    public void rowsThatAreNotContiguous(String kind, int size) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    long[][] lengths = lengths(kind, size);
                    NDArray rows = rows(manager, rank, lengths[rank]);
                    NDArray half = rows.concat(rows, 1).get(":, 0:" + COLUMNS);
                    boolean gaps = half.getShape().get(0) > 1;
                    Assert.assertFalse(gaps && TensorView.of(half).isContiguous());
                    checkPass(rank, lengths, communicator, manager, half);
                });
    }

    private static void checkPass(
            int rank,
            long[][] lengths,
            Communicator communicator,
            NDManager manager,
            NDArray input) {
        int size = lengths.length;
        long[] received = Arrays.stream(lengths).mapToLong(row -> row[rank]).toArray();
        NDArray before = input.duplicate();
        NDArray leaf = TestArrays.leaf(input);
        try (RegionMappings mappings = new RegionMappings(communicator)) {
            CollectiveCounts start = communicator.getCounts();
            NDArray output = mappings.exchange(leaf, lengths[rank], received);
            CollectiveCounts forward = communicator.getCounts().minus(start);
            NDList expected = new NDList(manager.zeros(new Shape(0, COLUMNS)));
            for (int from = 0; from < size; from++) {
                expected.add(part(rows(manager, from, lengths[from]), lengths[from], rank));
            }
            TestArrays.assertSame(output, NDArrays.concat(expected), "forward");
            // a gradient with gaps: half of the columns of another array
            NDArray gradient = output.mul(manager.create(10f)).stopGradient();
            Autograd.backward(output, gradient.concat(gradient, 1).get(":, 0:" + COLUMNS));
            TestArrays.assertGradient(leaf, before.mul(manager.create(10f)), "backward");
            CollectiveCounts both = communicator.getCounts().minus(start);
            int calls = size == 1 ? 0 : 1;
            Assert.assertEquals(forward.get(Collective.ALL_TO_ALL), calls);
            Assert.assertEquals(both.get(Collective.ALL_TO_ALL), 2 * calls);
            Assert.assertEquals(both.total(), 2 * calls);
        }
        TestArrays.assertSame(input, before, "the input afterwards");
    }

    /** Returns the rows that a rank has. */
    private static NDArray rows(NDManager manager, int rank, long[] lengths) {
        return TestArrays.random(manager, rank, new Shape(Arrays.stream(lengths).sum(), COLUMNS));
    }

    private static NDArray part(NDArray rows, long[] lengths, int to) {
        long start = Arrays.stream(lengths, 0, to).sum();
        return rows.get(new NDIndex().addSliceDim(start, start + lengths[to]));
    }

    /** Numbers of experts travel as rows do, without a gradient. */
    @Test(timeOut = 60_000)
    public void integers() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        long[] values = rank == 0 ? new long[] {1, 2, 3} : new long[] {40};
                        long[] sent = rank == 0 ? new long[] {1, 2} : new long[] {1, 0};
                        long[] received = rank == 0 ? new long[] {1, 1} : new long[] {2, 0};
                        NDArray output = mappings.exchange(manager.create(values), sent, received);
                        Assert.assertEquals(output.getDataType(), DataType.INT64);
                        Assert.assertEquals(
                                output.toLongArray(),
                                rank == 0 ? new long[] {1, 40} : new long[] {2, 3});
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void rowsThatDoNotFitAreRefused() throws Exception {
        Mapping.run(
                2,
                (mappings, manager, communicator) -> {
                    NDArray rows = manager.ones(new Shape(4, 2));
                    String message =
                            Assert.expectThrows(
                                            IllegalArgumentException.class,
                                            () ->
                                                    mappings.exchange(
                                                            rows,
                                                            new long[] {1, 2},
                                                            new long[] {1, 2}))
                                    .getMessage();
                    Assert.assertEquals(
                            message,
                            "Axis 0 of (4, 2) must have length 3 for the rows [1, 2] that go"
                                    + " to the ranks");
                });
    }
}
