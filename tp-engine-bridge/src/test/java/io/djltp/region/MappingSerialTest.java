package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/**
 * Every mapping, forward and backward, equals the calculation on one rank, at any size and for
 * ranges of different lengths, with as many collectives as it must take and no more.
 */
public class MappingSerialTest {

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

    @DataProvider
    public static Object[][] mappingsAndSizes() {
        List<Object[]> cases = new ArrayList<>();
        for (Mapping mapping : Mapping.values()) {
            for (int size = 1; size <= 4; size++) {
                cases.add(new Object[] {mapping, size});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "mappingsAndSizes", timeOut = 60_000)
    public void equalsTheSerialCalculation(Mapping mapping, int size) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        for (Shape whole : SHAPES) {
                            check(mapping, mappings, communicator, manager, whole);
                        }
                    }
                });
    }

    private static void check(
            Mapping mapping,
            RegionMappings mappings,
            Communicator communicator,
            NDManager manager,
            Shape whole) {
        int rank = communicator.getRank();
        int size = communicator.getSize();
        List<NDArray> inputs = new ArrayList<>();
        List<NDArray> gradients = new ArrayList<>();
        for (int i = 0; i < size; i++) {
            inputs.add(TestArrays.random(manager, 100 + i, mapping.inputShape(whole, i, size)));
            gradients.add(TestArrays.random(manager, 200 + i, mapping.outputShape(whole, i, size)));
        }
        NDArray input = TestArrays.leaf(inputs.get(rank).duplicate());
        CollectiveCounts before = communicator.getCounts();

        NDArray output = mapping.apply(mappings, input, mapping.cut(whole, size));
        CollectiveCounts between = communicator.getCounts();
        String what = mapping + " of " + whole;
        TestArrays.assertSame(output, mapping.forward(inputs, rank), what);
        TestArrays.assertSame(input, inputs.get(rank), "the input of " + what);
        Assert.assertTrue(TensorView.of(output).requiresGradient(), what);

        // the first consumer of the output: the mapping sees a gradient that is not the caller's
        NDArray used = TestArrays.times(output, 2);
        Autograd.backward(used, gradients.get(rank));
        CollectiveCounts after = communicator.getCounts();
        TestArrays.assertGradient(
                input, mapping.backward(gradients, rank).mul(2), "the gradient of " + what);

        Assert.assertEquals(
                between.minus(before).total(), size == 1 ? 0 : mapping.forwardCalls, what);
        Assert.assertEquals(
                after.minus(between).total(), size == 1 ? 0 : mapping.backwardCalls, what);
    }

    /** Without a gradient to compute there is nothing to communicate backward. */
    @Test(dataProvider = "mappingsAndSizes", timeOut = 60_000)
    public void worksWithoutGradients(Mapping mapping, int size) throws Exception {
        Shape whole = new Shape(7, 5);
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    List<NDArray> inputs = new ArrayList<>();
                    for (int i = 0; i < size; i++) {
                        inputs.add(
                                TestArrays.random(manager, i, mapping.inputShape(whole, i, size)));
                    }
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        NDArray plain =
                                mapping.apply(mappings, inputs.get(rank), mapping.cut(whole, size));
                        NDArray leaf = TestArrays.leaf(inputs.get(rank).duplicate());
                        try (Autograd.GradMode off = Autograd.gradMode(false)) {
                            NDArray unrecorded =
                                    mapping.apply(mappings, leaf, mapping.cut(whole, size));
                            Assert.assertNotNull(off);
                            for (NDArray output : new NDArray[] {plain, unrecorded}) {
                                TestArrays.assertSame(
                                        output, mapping.forward(inputs, rank), "" + mapping);
                            }
                        }
                        Assert.assertFalse(TensorView.of(plain).requiresGradient());
                    }
                });
    }
}
