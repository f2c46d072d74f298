package io.djltp.internal.region;

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
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.Map;

/** Rows go to the ranks that they are for, and their gradients come back. */
public class MappingExchangeTest {

    private static final int COLUMNS = 3;

    /** Returns how many rows a rank sends to another. */
    private interface Lengths {
        int of(int from, int to, int size);
    }

    private static final Map<String, Lengths> KINDS =
            Map.of(
                    "even",
                    (from, to, size) -> 2,
                    "uneven",
                    (from, to, size) -> (2 * from + 3 * to + 1) % 4,
                    "all to the last",
                    (from, to, size) -> to == size - 1 ? from + 1 : 0,
                    "a rank has none",
                    (from, to, size) -> from == 0 ? 0 : to + 1,
                    "nothing at all",
                    (from, to, size) -> 0);

    @DataProvider
    public static Object[][] kinds() {
        return KINDS.keySet().stream().map(kind -> new Object[] {kind}).toArray(Object[][]::new);
    }

    /** Of rows that lie together, and of half of the columns of another array. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void rowsAndTheirGradients(String kind) throws Exception {
        for (int size = 1; size <= 4; size++) {
            long[][] lengths = new long[size][size]; // [from][to]
            for (int from = 0; from < size; from++) {
                for (int to = 0; to < size; to++) {
                    lengths[from][to] = KINDS.get(kind).of(from, to, size);
                }
            }
            Mapping.run(
                    size,
                    (mappings, manager, group) -> {
                        NDArray rows = rows(manager, group.getRank(), lengths);
                        checkPass(lengths, mappings, group, rows.duplicate());
                        NDArray half = half(rows);
                        boolean gaps = half.getShape().get(0) > 1;
                        Assert.assertFalse(gaps && TensorView.of(half).isContiguous());
                        checkPass(lengths, mappings, group, half);
                    });
        }
    }

    private static NDArray half(NDArray rows) {
        return rows.concat(rows, 1).get(":, 0:" + COLUMNS);
    }

    private static void checkPass(
            long[][] lengths, RegionMappings mappings, Communicator group, NDArray input) {
        int rank = group.getRank();
        int size = lengths.length;
        NDManager manager = input.getManager();
        long[] received = Arrays.stream(lengths).mapToLong(row -> row[rank]).toArray();
        NDArray before = input.duplicate();
        NDArray leaf = TestArrays.leaf(input);
        CollectiveCounts start = group.getCounts();
        NDArray output = mappings.exchange(leaf, lengths[rank], received);
        CollectiveCounts forward = group.getCounts().minus(start);
        NDList expected = new NDList(manager.zeros(new Shape(0, COLUMNS)));
        for (int from = 0; from < size; from++) {
            long first = Arrays.stream(lengths[from], 0, rank).sum();
            NDIndex part = new NDIndex().addSliceDim(first, first + lengths[from][rank]);
            expected.add(rows(manager, from, lengths).get(part));
        }
        TestArrays.assertSame(output, NDArrays.concat(expected), "forward");
        // a gradient with gaps
        Autograd.backward(output, half(output.mul(manager.create(10f)).stopGradient()));
        TestArrays.assertGradient(leaf, before.mul(manager.create(10f)), "backward");
        CollectiveCounts both = group.getCounts().minus(start);
        int calls = size == 1 ? 0 : 1;
        Assert.assertEquals(forward.get(Collective.ALL_TO_ALL), calls);
        Assert.assertEquals(both.get(Collective.ALL_TO_ALL), 2 * calls);
        Assert.assertEquals(both.total(), 2 * calls);
        TestArrays.assertSame(input, before, "the input afterwards");
    }

    /** Returns the rows that a rank has. */
    private static NDArray rows(NDManager manager, int rank, long[][] lengths) {
        Shape shape = new Shape(Arrays.stream(lengths[rank]).sum(), COLUMNS);
        return TestArrays.random(manager, rank, shape);
    }

    /** Numbers of experts travel as rows do, without a gradient. */
    @Test(timeOut = 60_000)
    public void integers() throws Exception {
        Mapping.run(
                2,
                (mappings, manager, group) -> {
                    boolean first = group.getRank() == 0;
                    long[] values = first ? new long[] {1, 2, 3} : new long[] {40};
                    long[] sent = first ? new long[] {1, 2} : new long[] {1, 0};
                    long[] received = first ? new long[] {1, 1} : new long[] {2, 0};
                    NDArray output = mappings.exchange(manager.create(values), sent, received);
                    Assert.assertEquals(output.getDataType(), DataType.INT64);
                    long[] expected = first ? new long[] {1, 40} : new long[] {2, 3};
                    Assert.assertEquals(output.toLongArray(), expected);
                });
    }

    @Test(timeOut = 60_000)
    public void rowsThatDoNotFitAreRefused() throws Exception {
        long[] rows = {1, 2};
        Mapping.run(
                2,
                (mappings, manager, group) ->
                        Refusals.throwsArgument(
                                () -> mappings.exchange(manager.ones(new Shape(4, 2)), rows, rows),
                                "Axis 0 of (4, 2) must have length 3 for the rows [1, 2] that go to"
                                        + " the ranks"));
    }
}
