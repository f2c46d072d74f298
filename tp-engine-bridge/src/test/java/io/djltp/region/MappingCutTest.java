package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.testing.TestArrays;

import org.bytedeco.pytorch.Tensor;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;

/**
 * The mappings under any cut are what libtorch's own autograd computes on one rank that has the
 * arrays of all: lengths of the user's choice, several ranges, ranges that several ranks have.
 */
public class MappingCutTest {

    private static final Shape OTHER = new Shape(3, 2); // the axes beside the one that is cut

    @DataProvider
    public static Object[][] cuts() {
        List<Object[]> cases = new ArrayList<>();
        for (int size = 1; size <= 4; size++) {
            int ranks = size;
            cases.add(new Object[] {"uneven", uneven(size)});
            cases.add(new Object[] {"stacked", stacked(size)});
            cases.add(new Object[] {"replicated", Cut.replicated(5, size)});
            // two halves for half of the ranks each
            cases.add(
                    new Object[] {
                        "grouped",
                        Cut.of(
                                8,
                                size,
                                r -> ranges(ranks == 1 ? 0 : r * 2 / ranks * 4, ranks == 1 ? 8 : 4))
                    });
            // a query head of each rank, and the key and value that two ranks share
            cases.add(
                    new Object[] {
                        "stacked and grouped",
                        Cut.of(
                                2 * size + 3 * ((size + 1) / 2),
                                size,
                                r -> ranges(2 * ranks + r / 2 * 3, 3, 2 * r, 2))
                    });
            // neighbours overlap, and lie in the shard in another order than on the axis
            cases.add(
                    new Object[] {
                        "overlapping",
                        Cut.of(2 * size + 1, size, r -> ranges(2 * r + 1, 2, 2 * r, 1))
                    });
        }
        return cases.toArray(new Object[0][]);
    }

    private static Cut uneven(int size) {
        return size == 1
                ? Cut.ofLengths(8)
                : size == 2
                        ? Cut.ofLengths(5, 3)
                        : size == 3 ? Cut.ofLengths(1, 5, 2) : Cut.ofLengths(3, 0, 4, 1);
    }

    /** Three parts of unequal width, of each of which every rank has its share. */
    private static Cut stacked(int size) {
        return Cut.of(8 * size, size, r -> ranges(2 * r, 2, 2 * size + r, 1, 3 * size + 5 * r, 5));
    }

    private static List<ShardRange> ranges(long... startsAndLengths) {
        List<ShardRange> ranges = new ArrayList<>();
        for (int i = 0; i < startsAndLengths.length; i += 2) {
            ranges.add(new ShardRange(startsAndLengths[i], startsAndLengths[i + 1]));
        }
        return ranges;
    }

    /** What the ranks compute, and the same on one rank that has the arrays of all. */
    private enum Case {
        GATHER(true, false, 2),
        SCATTER(false, true, 2),
        GATHER_ROWS(true, false, 0),
        GATHER_ROWS_PARTIAL(true, false, 0),
        SCATTER_ROWS(false, true, 0),
        REDUCE_SCATTER(false, true, 0),
        GATHER_TOKENS(true, false, 1),
        GATHER_TOKENS_PARTIAL(true, false, 1),
        SCATTER_TOKENS(false, true, 1),
        REDUCE_SCATTER_TOKENS(false, true, 1);

        final boolean slicedInput;
        final boolean slicedOutput;
        final int axis;

        Case(boolean slicedInput, boolean slicedOutput, int axis) {
            this.slicedInput = slicedInput;
            this.slicedOutput = slicedOutput;
            this.axis = axis;
        }

        NDArray apply(RegionMappings mappings, NDArray input, Cut cut) {
            switch (this) {
                case GATHER:
                    return mappings.gatherFromRegion(input, cut);
                case SCATTER:
                    return mappings.scatterToRegion(input, cut);
                case GATHER_ROWS:
                    return mappings.gatherFromSequenceRegion(input, cut, false);
                case GATHER_ROWS_PARTIAL:
                    return mappings.gatherFromSequenceRegion(input, cut, true);
                case SCATTER_ROWS:
                    return mappings.scatterToSequenceRegion(input, cut);
                case REDUCE_SCATTER:
                    return mappings.reduceScatterToSequenceRegion(input, cut);
                case GATHER_TOKENS:
                    return mappings.gatherFromSequenceRegion(input, cut, 1, false);
                case GATHER_TOKENS_PARTIAL:
                    return mappings.gatherFromSequenceRegion(input, cut, 1, true);
                case SCATTER_TOKENS:
                    return mappings.scatterToSequenceRegion(input, cut, 1);
                default:
                    return mappings.reduceScatterToSequenceRegion(input, cut, 1);
            }
        }

        /** Returns the output of a rank, given leaves for the inputs of all. */
        NDArray serial(List<NDArray> inputs, int rank, Cut cut) {
            if (slicedInput) {
                NDList parts = new NDList();
                for (Segment segment : cut.getSegments()) {
                    int first = segment.getFirstRank();
                    long place = segment.getPlace(first);
                    parts.add(part(inputs.get(first), place, segment.range().length()));
                }
                return joined(parts);
            }
            NDArray whole = name().startsWith("REDUCE") ? Mapping.sum(inputs) : inputs.get(rank);
            NDList parts = new NDList();
            for (ShardRange range : cut.getRanges(rank)) {
                parts.add(part(whole, range.start(), range.length()));
            }
            return joined(parts);
        }

        private NDArray part(NDArray array, long start, long length) {
            NDIndex index = new NDIndex();
            for (int i = 0; i < axis; i++) {
                index.addAllDim();
            }
            return array.get(index.addSliceDim(start, start + length));
        }

        private NDArray joined(NDList parts) {
            return parts.size() == 1 ? parts.head() : NDArrays.concat(parts, axis);
        }

        Shape shape(Cut cut, int rank, boolean sliced) {
            long length = sliced ? cut.getShardLength(rank) : cut.getLength();
            return OTHER.slice(0, axis).add(length).addAll(OTHER.slice(axis));
        }

        /**
         * Whether a rank's gradient of its input depends on the other ranks' outputs: on all that
         * are summands of one loss. A gather for replicated consumers has the whole gradient.
         */
        boolean sums() {
            return this != GATHER && this != GATHER_ROWS && this != GATHER_TOKENS;
        }
    }

    @Test(dataProvider = "cuts", timeOut = 60_000)
    public void equalsSerialAutograd(String name, Cut cut) throws Exception {
        RankThreads.run(
                cut.getRanks(),
                (communicator, manager) -> {
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        for (Case each : Case.values()) {
                            check(each, mappings, communicator, manager, cut, name);
                        }
                    }
                });
    }

    private static void check(
            Case each,
            RegionMappings mappings,
            Communicator communicator,
            NDManager manager,
            Cut cut,
            String name) {
        int rank = communicator.getRank();
        List<NDArray> inputs = new ArrayList<>();
        List<NDArray> gradients = new ArrayList<>();
        // what is scattered is replicated: the same leaf on all ranks
        boolean shared = each.name().startsWith("SCATTER");
        for (int i = 0; i < cut.getRanks(); i++) {
            int seed = shared ? 0 : i;
            NDArray values =
                    TestArrays.random(manager, 100 + seed, each.shape(cut, i, each.slicedInput));
            inputs.add(i > 0 && shared ? inputs.get(0) : TestArrays.leaf(values));
            gradients.add(
                    TestArrays.random(manager, 200 + i, each.shape(cut, i, each.slicedOutput)));
        }
        NDArray input = TestArrays.leaf(copy(inputs.get(rank)));
        String what = each + " of " + name + " " + cut;

        NDArray output = each.apply(mappings, input, cut);
        Autograd.backward(output, gradients.get(rank));

        TestArrays.assertSame(output, each.serial(inputs, rank, cut), what);
        for (int i = 0; i < cut.getRanks(); i++) {
            if (i == rank || each.sums()) {
                Autograd.backward(each.serial(inputs, i, cut), gradients.get(i));
            }
        }
        try (NDArray gradient = Autograd.gradient(inputs.get(rank))) {
            NDArray expected = gradient == null ? manager.zeros(input.getShape()) : gradient;
            TestArrays.assertGradient(input, expected, "the gradient of " + what);
        }
        TestArrays.assertSame(input, copy(inputs.get(rank)), "the input of " + what);
    }

    private static NDArray copy(NDArray leaf) {
        return leaf.getManager().create(leaf.toFloatArray(), leaf.getShape());
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
}
