package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

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
 * Arrays and gradients that are not contiguous in memory give what contiguous ones give, and nobody
 * else's memory is written.
 */
public class MappingLayoutTest {

    private static final Shape WHOLE = new Shape(7, 5);

    @DataProvider
    public static Object[][] mappingsAndSizes() {
        List<Object[]> cases = new ArrayList<>();
        for (Mapping mapping : Mapping.values()) {
            for (int size = 2; size <= 4; size++) {
                cases.add(new Object[] {mapping, size});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "mappingsAndSizes", timeOut = 60_000)
    public void transposedArraysAndGradients(Mapping mapping, int size) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    List<NDArray> inputs = new ArrayList<>();
                    List<NDArray> gradients = new ArrayList<>();
                    for (int i = 0; i < size; i++) {
                        inputs.add(transposed(manager, i, mapping.inputShape(WHOLE, i, size)));
                        gradients.add(
                                transposed(manager, 9 + i, mapping.outputShape(WHOLE, i, size)));
                    }
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        check(mapping, mappings, inputs, gradients, rank);
                    }
                });
    }

    @Test(dataProvider = "mappingsAndSizes", timeOut = 60_000)
    public void expandedArraysAndGradients(Mapping mapping, int size) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    List<NDArray> inputs = new ArrayList<>();
                    List<NDArray> gradients = new ArrayList<>();
                    for (int i = 0; i < size; i++) {
                        inputs.add(expanded(manager, i, mapping.inputShape(WHOLE, i, size)));
                        gradients.add(
                                expanded(manager, 9 + i, mapping.outputShape(WHOLE, i, size)));
                    }
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        check(mapping, mappings, inputs, gradients, rank);
                    }
                });
    }

    private static void check(
            Mapping mapping,
            RegionMappings mappings,
            List<NDArray> inputs,
            List<NDArray> gradients,
            int rank) {
        NDArray input = inputs.get(rank);
        NDArray gradient = gradients.get(rank);
        // a single row or column has no order
        boolean ordered = gradient.getShape().get(0) > 1 && gradient.getShape().get(1) > 1;
        Assert.assertFalse(ordered && TensorView.of(gradient).isContiguous());
        NDArray inputBefore = input.duplicate();
        NDArray gradientBefore = gradient.duplicate();
        NDArray leaf = TestArrays.leaf(input);

        NDArray output = mapping.apply(mappings, leaf, mapping.cut(WHOLE, inputs.size()));
        TestArrays.assertSame(output, mapping.forward(inputs, rank), "forward");
        // straight into the mapping: the hook gets the caller's own gradient
        Autograd.backward(output, gradient);

        TestArrays.assertGradient(leaf, mapping.backward(gradients, rank), "backward");
        TestArrays.assertSame(input, inputBefore, "the input afterwards");
        TestArrays.assertSame(gradient, gradientBefore, "the gradient afterwards");
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

    /** The caller says that the gradient may be overwritten, but one row of it is all there is. */
    @Test(timeOut = 60_000)
    public void anExpandedGradientIsCopiedEvenIfOwned() throws Exception {
        RankThreads.run(
                3,
                (communicator, manager) -> {
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        NDArray leaf = TestArrays.leaf(manager.ones(new Shape(4, 2)));
                        // the gradient of a sum is one number, seen as an array
                        NDArray loss = mappings.copyToRegion(leaf, true).sum();
                        Autograd.backward(loss, manager.create(communicator.getRank() + 1f));
                        TestArrays.assertGradient(
                                leaf, manager.full(new Shape(4, 2), 6f), "backward");
                    }
                });
    }

    /** A contiguous gradient that is the caller's must not be reduced in place either. */
    @Test(timeOut = 60_000)
    public void theCallersGradientIsNotReducedInPlace() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        NDArray leaf = TestArrays.leaf(manager.ones(new Shape(4, 2)));
                        NDArray gradient = manager.ones(new Shape(4, 2));
                        Autograd.backward(mappings.copyToRegion(leaf), gradient);
                        TestArrays.assertGradient(
                                leaf, manager.full(new Shape(4, 2), 2f), "backward");
                        TestArrays.assertSame(
                                gradient, manager.ones(new Shape(4, 2)), "the caller's gradient");
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void reduceWorksInPlaceOnlyWhereItMay() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        NDArray weight = TestArrays.leaf(manager.ones(new Shape(3, 2)));
                        NDArray product = manager.ones(new Shape(4, 3)).matMul(weight);
                        NDArray sum = mappings.reduceFromRegion(product, true);
                        // the product itself has become the sum
                        Assert.assertEquals(
                                TensorView.of(sum).address(), TensorView.of(product).address());
                        TestArrays.assertSame(sum, manager.full(new Shape(4, 2), 6f), "forward");
                        Autograd.backward(sum, manager.ones(new Shape(4, 2)));
                        TestArrays.assertGradient(
                                weight, manager.full(new Shape(3, 2), 4f), "backward");

                        NDArray shared = manager.ones(new Shape(4, 3)).transpose();
                        NDArray other = mappings.reduceFromRegion(shared, true);
                        Assert.assertNotEquals(
                                TensorView.of(other).address(), TensorView.of(shared).address());
                        TestArrays.assertSame(
                                shared, manager.ones(new Shape(3, 4)), "what has gaps");
                    }
                });
    }
}
