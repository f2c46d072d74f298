package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.internal.torch.Autograd;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** Mappings as parts of larger graphs: several consumers, residuals, the time in between. */
public class MappingGraphTest {

    private static final Shape INPUT = new Shape(3, 4);
    private static final Shape WEIGHT = new Shape(4, 2);

    private static NDArray weight(NDManager manager, int rank, int number) {
        return TestArrays.random(manager, 1000 * number + rank, WEIGHT);
    }

    /** Three products of one mapped array, like those of an attention block: one all-reduce. */
    @Test(timeOut = 60_000)
    public void consumersOfOneMappedArrayShareAnAllReduce() throws Exception {
        for (boolean owns : new boolean[] {false, true}) {
            RankThreads.run(
                    3,
                    (communicator, manager) -> {
                        int rank = communicator.getRank();
                        NDArray input = TestArrays.random(manager, 1, INPUT);
                        NDArray leaf = TestArrays.leaf(input.duplicate());
                        try (RegionMappings mappings = new RegionMappings(communicator)) {
                            NDArray mapped = mappings.copyToRegion(leaf, owns);
                            NDArray total = null;
                            for (int i = 0; i < 3; i++) {
                                NDArray product = mapped.matMul(weight(manager, rank, i));
                                total = total == null ? product : total.add(product);
                            }
                            CollectiveCounts before = communicator.getCounts();
                            Autograd.backward(total, manager.ones(total.getShape()));
                            Assert.assertEquals(
                                    communicator.getCounts().minus(before).toString(),
                                    "1 all-reduce");
                        }
                        // ones times all weights of all ranks
                        NDArray expected = manager.zeros(INPUT);
                        for (int r = 0; r < 3; r++) {
                            for (int i = 0; i < 3; i++) {
                                NDArray ones = manager.ones(new Shape(3, 2));
                                expected =
                                        expected.add(
                                                ones.matMul(weight(manager, r, i).transpose()));
                            }
                        }
                        TestArrays.assertGradient(leaf, expected, "owned: " + owns);
                    });
        }
    }

    /** Only what went through the region is reduced: not the gradient that passes it by. */
    @Test(timeOut = 60_000)
    public void aResidualPassesTheRegionBy() throws Exception {
        for (boolean owns : new boolean[] {false, true}) {
            RankThreads.run(
                    2,
                    (communicator, manager) -> {
                        int rank = communicator.getRank();
                        Shape square = new Shape(4, 4);
                        NDArray input = TestArrays.random(manager, 1, INPUT);
                        NDArray leaf = TestArrays.leaf(input.duplicate());
                        NDArray gradient = TestArrays.random(manager, 2, INPUT);
                        NDArray kept = gradient.duplicate();
                        List<NDArray> weights = new ArrayList<>();
                        for (int r = 0; r < 2; r++) {
                            weights.add(TestArrays.random(manager, 10 + r, square));
                        }
                        try (RegionMappings mappings = new RegionMappings(communicator)) {
                            NDArray hidden =
                                    TestArrays.times(leaf, 2); // a leaf and a node both are mapped
                            NDArray mapped = mappings.copyToRegion(hidden, owns);
                            NDArray product = mapped.matMul(weights.get(rank));
                            NDArray output = hidden.add(mappings.reduceFromRegion(product, owns));
                            NDArray dense =
                                    input.mul(2).add(input.mul(2).matMul(Mapping.sum(weights)));
                            TestArrays.assertSame(output, dense, "forward");
                            Autograd.backward(output, gradient);
                        }
                        NDArray through = kept.matMul(Mapping.sum(weights).transpose());
                        TestArrays.assertGradient(leaf, kept.add(through).mul(2), "backward");
                        TestArrays.assertSame(gradient, kept, "the gradient afterwards");
                    });
        }
    }

    @Test(timeOut = 60_000)
    public void oneInputMayBeMappedManyTimes() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    NDArray leaf = TestArrays.leaf(manager.ones(INPUT));
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        NDArray first = mappings.copyToRegion(leaf);
                        NDArray second = mappings.copyToRegion(leaf);
                        NDArray rows = mappings.scatterToSequenceRegion(leaf, Cut.balanced(3, 2));
                        NDArray copies =
                                TestArrays.times(first, 2).add(TestArrays.times(second, 3));
                        NDArray total = copies.sum().add(rows.sum());
                        CollectiveCounts before = communicator.getCounts();
                        Autograd.backward(total, manager.create(1f));
                        Assert.assertEquals(
                                communicator.getCounts().minus(before).toString(),
                                "2 all-reduce, 1 all-gather");
                    }
                    // 2 x 2 and 2 x 3 of the copies, 1 of the rows
                    TestArrays.assertGradient(leaf, manager.full(INPUT, 11f), "backward");
                });
    }

    @Test(timeOut = 60_000)
    public void gradientsAddUpOverBackwardPasses() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    NDArray leaf = TestArrays.leaf(manager.ones(INPUT));
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        for (int pass = 1; pass <= 3; pass++) {
                            NDArray output = TestArrays.times(mappings.copyToRegion(leaf), pass);
                            Autograd.backward(output, manager.ones(INPUT));
                        }
                    }
                    TestArrays.assertGradient(leaf, manager.full(INPUT, 12f), "1 + 2 + 3, twice");
                });
    }

    /** Libtorch does not keep the hooks alive: the mappings must. */
    @Test(timeOut = 60_000)
    public void hooksOutliveTheGarbageCollector() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        NDArray leaf = TestArrays.leaf(manager.ones(INPUT));
                        NDArray output = throughAll(mappings, leaf);
                        for (int i = 0; i < 3; i++) {
                            System.gc();
                            Thread.sleep(20); // JavaCPP frees in a thread of its own
                        }
                        Autograd.backward(output, manager.ones(INPUT));
                        Assert.assertNull(mappings.takeFailure());
                        TestArrays.assertGradient(leaf, manager.full(INPUT, 4f), "backward");
                    }
                });
    }

    /** Two ranks: both all-reduces of the gradient count, the rest is there and back. */
    private static NDArray throughAll(RegionMappings mappings, NDArray input) {
        NDArray array = mappings.copyToRegion(input);
        Cut columns = Cut.balanced(INPUT.get(1), 2);
        Cut cut = Cut.balanced(INPUT.get(0), 2);
        array = mappings.gatherFromRegion(mappings.scatterToRegion(array, columns), columns);
        NDArray rows = mappings.scatterToSequenceRegion(array, cut);
        array = mappings.gatherFromSequenceRegion(rows, cut, true);
        rows = mappings.reduceScatterToSequenceRegion(array, cut);
        return mappings.gatherFromSequenceRegion(rows, cut, false);
    }

    @Test(timeOut = 60_000)
    public void aGroupOfOneIsTheIdentity() throws Exception {
        RankThreads.run(
                1,
                (communicator, manager) -> {
                    Communicator alone = communicator;
                    try (RegionMappings mappings = new RegionMappings(alone)) {
                        NDArray input = manager.ones(INPUT);
                        for (Mapping mapping : Mapping.values()) {
                            Assert.assertSame(
                                    mapping.apply(mappings, input, mapping.cut(INPUT, 1)), input);
                        }
                        Assert.assertSame(mappings.copyToRegion(input, true), input);
                        Assert.assertSame(mappings.reduceFromRegion(input, true), input);
                    }
                });
    }
}
