package io.djltp.internal.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.Communicator;
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

    private static NDArray weight(NDManager manager, int rank, int number) {
        return TestArrays.random(manager, 1000 * number + rank, new Shape(4, 2));
    }

    private static String counted(Communicator group, NDArray output, NDArray gradient) {
        CollectiveCounts before = group.getCounts();
        Autograd.backward(output, gradient);
        return group.getCounts().minus(before).toString();
    }

    /** Three products of one mapped array, like those of an attention block: one all-reduce. */
    @Test(timeOut = 60_000)
    public void consumersOfOneMappedArrayShareAnAllReduce() throws Exception {
        for (boolean owns : new boolean[] {false, true}) {
            Mapping.run(
                    3,
                    (mappings, manager, group) -> {
                        NDArray leaf = TestArrays.leaf(TestArrays.random(manager, 1, INPUT));
                        NDArray mapped = mappings.copyToRegion(leaf, owns);
                        NDArray ones = manager.ones(new Shape(3, 2));
                        List<NDArray> products = new ArrayList<>();
                        List<NDArray> expected = new ArrayList<>(); // ones times all weights
                        for (int i = 0; i < 3; i++) {
                            products.add(mapped.matMul(weight(manager, group.getRank(), i)));
                            for (int r = 0; r < 3; r++) {
                                expected.add(ones.matMul(weight(manager, r, i).transpose()));
                            }
                        }
                        String counts = counted(group, Mapping.sum(products), ones);
                        Assert.assertEquals(counts, "1 all-reduce");
                        TestArrays.assertGradient(leaf, Mapping.sum(expected), "owned: " + owns);
                    });
        }
    }

    /** Only what went through the region is reduced: not the gradient that passes it by. */
    @Test(timeOut = 60_000)
    public void aResidualPassesTheRegionBy() throws Exception {
        for (boolean owns : new boolean[] {false, true}) {
            Mapping.run(
                    2,
                    (mappings, manager, group) -> {
                        NDArray input = TestArrays.random(manager, 1, INPUT);
                        NDArray leaf = TestArrays.leaf(input.duplicate());
                        NDArray gradient = TestArrays.random(manager, 2, INPUT);
                        NDArray kept = gradient.duplicate();
                        List<NDArray> weights =
                                List.of(
                                        TestArrays.random(manager, 10, new Shape(4, 4)),
                                        TestArrays.random(manager, 11, new Shape(4, 4)));
                        NDArray hidden = TestArrays.times(leaf, 2); // leaf and node both are mapped
                        NDArray mapped = mappings.copyToRegion(hidden, owns);
                        NDArray product = mapped.matMul(weights.get(group.getRank()));
                        NDArray output = hidden.add(mappings.reduceFromRegion(product, owns));
                        NDArray sum = Mapping.sum(weights);
                        NDArray dense = input.mul(2).add(input.mul(2).matMul(sum));
                        TestArrays.assertSame(output, dense, "forward");
                        Autograd.backward(output, gradient);
                        NDArray through = kept.matMul(sum.transpose());
                        TestArrays.assertGradient(leaf, kept.add(through).mul(2), "backward");
                        TestArrays.assertSame(gradient, kept, "the gradient afterwards");
                    });
        }
    }

    @Test(timeOut = 60_000)
    public void oneInputMayBeMappedManyTimes() throws Exception {
        Mapping.run(
                2,
                (mappings, manager, group) -> {
                    NDArray leaf = TestArrays.leaf(manager.ones(INPUT));
                    NDArray first = mappings.copyToRegion(leaf);
                    NDArray second = mappings.copyToRegion(leaf);
                    NDArray rows = mappings.scatterToSequenceRegion(leaf, Cut.balanced(3, 2));
                    NDArray copies = TestArrays.times(first, 2).add(TestArrays.times(second, 3));
                    NDArray total = copies.sum().add(rows.sum());
                    Assert.assertEquals(
                            counted(group, total, manager.create(1f)),
                            "2 all-reduce, 1 all-gather");
                    // 2 x 2 and 2 x 3 of the copies, 1 of the rows
                    TestArrays.assertGradient(leaf, manager.full(INPUT, 11f), "backward");
                });
    }

    @Test(timeOut = 60_000)
    public void gradientsAddUpOverBackwardPasses() throws Exception {
        Mapping.run(
                2,
                (mappings, manager, group) -> {
                    NDArray leaf = TestArrays.leaf(manager.ones(INPUT));
                    for (int pass = 1; pass <= 3; pass++) {
                        NDArray output = TestArrays.times(mappings.copyToRegion(leaf), pass);
                        Autograd.backward(output, manager.ones(INPUT));
                    }
                    TestArrays.assertGradient(leaf, manager.full(INPUT, 12f), "1 + 2 + 3, twice");
                });
    }

    /** Libtorch does not keep the hooks alive: the mappings must. */
    @Test(timeOut = 60_000)
    public void hooksOutliveTheGarbageCollector() throws Exception {
        Cut columns = Cut.balanced(4, 2);
        Cut cut = Cut.balanced(3, 2);
        Mapping.run(
                2,
                (mappings, manager, group) -> {
                    NDArray leaf = TestArrays.leaf(manager.ones(INPUT));
                    // both all-reduces of the gradient count, the rest is there and back
                    NDArray x = mappings.copyToRegion(leaf);
                    x = mappings.gatherFromRegion(mappings.scatterToRegion(x, columns), columns);
                    x = mappings.scatterToSequenceRegion(x, cut);
                    x = mappings.gatherFromSequenceRegion(x, cut, true);
                    x = mappings.reduceScatterToSequenceRegion(x, cut);
                    x = mappings.gatherFromSequenceRegion(x, cut, false);
                    for (int i = 0; i < 3; i++) {
                        System.gc();
                        Thread.sleep(20); // JavaCPP frees in a thread of its own
                    }
                    Autograd.backward(x, manager.ones(INPUT));
                    Assert.assertNull(mappings.takeFailure());
                    TestArrays.assertGradient(leaf, manager.full(INPUT, 4f), "backward");
                });
    }

    @Test(timeOut = 60_000)
    public void aGroupOfOneIsTheIdentity() throws Exception {
        Mapping.run(
                1,
                (mappings, manager, group) -> {
                    NDArray input = manager.ones(INPUT);
                    for (Mapping mapping : Mapping.values()) {
                        Cut cut = Cut.balanced(INPUT.get(mapping.axis(INPUT)), 1);
                        Assert.assertSame(mapping.apply(mappings, input, cut), input);
                    }
                    Assert.assertSame(mappings.copyToRegion(input, true), input);
                    Assert.assertSame(mappings.reduceFromRegion(input, true), input);
                });
    }
}
