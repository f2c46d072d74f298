package io.djltp.internal.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.torch.Autograd;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.UnaryOperator;

/** What is computed again has the gradients of what is kept. */
public class RecomputationTest extends RecordedTest {

    private static final int LAYERS = 3;

    private static NDArray recomputed(UnaryOperator<NDArray> function, NDArray x) {
        return new Recomputation(in -> function.apply(in.head()), new AtomicReference<>())
                .forward(new NDList(x));
    }

    /** Layers of column, activation, row, with collectives both ways, each around a residual. */
    @Test(timeOut = 60_000)
    public void gradientsAreTheSameBitForBit() throws Exception {
        for (int size : new int[] {1, 2, 3}) {
            Mapping.run(
                    size,
                    (mappings, own, communicator) -> {
                        int rank = communicator.getRank();
                        CollectiveCounts start = communicator.getCounts();
                        List<float[]> kept = pass(own, mappings, rank, false);
                        CollectiveCounts once = communicator.getCounts();
                        List<float[]> again = pass(own, mappings, rank, true);
                        CollectiveCounts twice = communicator.getCounts();
                        for (int i = 0; i < kept.size(); i++) {
                            Assert.assertTrue(
                                    Arrays.equals(again.get(i), kept.get(i)), "array " + i);
                        }
                        // the all-reduce of the forward pass comes once more
                        long more = size == 1 ? 0 : LAYERS;
                        Assert.assertEquals(
                                twice.minus(once).total(), once.minus(start).total() + more);
                    });
        }
    }

    private static List<float[]> pass(
            NDManager parent, RegionMappings mappings, int rank, boolean again) {
        List<float[]> results = new ArrayList<>();
        try (NDManager manager = parent.newSubManager()) {
            NDArray leaf = random(manager, 1, 5, 4);
            List<NDArray> weights = new ArrayList<>();
            NDArray x = TestArrays.times(leaf, 2);
            for (int i = 0; i < LAYERS; i++) {
                int seed = 10 * i + 100 * rank;
                NDArray first = random(manager, seed + 2, 4, 6);
                NDArray second = random(manager, seed + 3, 6, 4);
                weights.add(first);
                weights.add(second);
                UnaryOperator<NDArray> layer =
                        in -> {
                            NDArray y = mappings.copyToRegion(in).matMul(first).tanh();
                            return mappings.reduceFromRegion(y.matMul(second)).add(in);
                        };
                x = again ? recomputed(layer, x) : layer.apply(x);
            }
            results.add(x.toFloatArray());
            Autograd.backward(x, TestArrays.random(manager, 9, x.getShape()));
            weights.add(leaf);
            for (NDArray weight : weights) {
                try (NDArray gradient = Autograd.gradient(weight)) {
                    results.add(gradient.toFloatArray());
                }
            }
        }
        return results;
    }

    private static NDArray random(NDManager manager, int seed, long... shape) {
        return TestArrays.leaf(TestArrays.random(manager, seed, new Shape(shape)));
    }

    /**
     * Parameters get their gradients also where the input needs none, as that of the first layer.
     */
    @Test(timeOut = 60_000)
    public void anInputThatNeedsNoGradient() {
        NDArray x = TestArrays.random(manager, 1, new Shape(5, 4));
        NDArray weight = random(manager, 2, 4, 3);
        AtomicInteger calls = new AtomicInteger();
        NDArray y =
                recomputed(
                        in -> {
                            calls.incrementAndGet();
                            return in.matMul(weight);
                        },
                        x);
        Assert.assertEquals(calls.get(), 1);
        NDArray gradient = TestArrays.random(manager, 3, y.getShape());
        Autograd.backward(y, gradient);
        Assert.assertEquals(calls.get(), 2);
        TestArrays.assertGradient(weight, x.transpose().matMul(gradient), "weight");
    }

    /** The inner arrays of a pass are closed when it returns. */
    @Test(timeOut = 60_000)
    public void innerArraysAreNotKept() {
        List<NDArray> inner = new ArrayList<>();
        NDArray y =
                recomputed(
                        in -> {
                            inner.add(in.tanh());
                            return inner.get(inner.size() - 1).square();
                        },
                        random(manager, 1, 5, 4));
        Assert.assertThrows(IllegalStateException.class, () -> inner.get(0).toFloatArray());
        Autograd.backward(y, manager.ones(y.getShape()));
        Assert.assertThrows(IllegalStateException.class, () -> inner.get(1).toFloatArray());
    }

    /** What a function throws in the backward pass ends that, and the cause is kept. */
    @Test(timeOut = 60_000)
    public void aFailureInTheBackwardPass() {
        AtomicInteger calls = new AtomicInteger();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        NDArray y =
                new Recomputation(
                                in -> {
                                    if (calls.incrementAndGet() == 2) {
                                        throw new IllegalStateException("the second time");
                                    }
                                    return in.head().tanh();
                                },
                                failure)
                        .forward(new NDList(random(manager, 1, 5, 4)));
        NDArray ones = manager.ones(y.getShape());
        Assert.assertThrows(RuntimeException.class, () -> Autograd.backward(y, ones));
        Assert.assertEquals(failure.get().getMessage(), "the second time");
    }
}
