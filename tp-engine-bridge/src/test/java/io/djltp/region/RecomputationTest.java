package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.RankThreads;
import io.djltp.internal.torch.Autograd;
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
@SuppressWarnings("try") // a scope is used by being open
public class RecomputationTest {

    private static final int LAYERS = 3;

    /** Layers of column, activation, row, with collectives both ways, each around a residual. */
    @Test(timeOut = 60_000)
    public void gradientsAreTheSameBitForBit() throws Exception {
        for (int size : new int[] {1, 2, 3}) {
            RankThreads.run(
                    size,
                    (communicator, manager) -> {
                        try (RegionMappings mappings = new RegionMappings(communicator)) {
                            int rank = communicator.getRank();
                            CollectiveCounts start = communicator.getCounts();
                            List<float[]> kept = pass(manager, mappings, rank, false);
                            CollectiveCounts once = communicator.getCounts().minus(start);
                            start = communicator.getCounts();
                            List<float[]> again = pass(manager, mappings, rank, true);
                            CollectiveCounts twice = communicator.getCounts().minus(start);
                            for (int i = 0; i < kept.size(); i++) {
                                Assert.assertTrue(
                                        Arrays.equals(again.get(i), kept.get(i)), "array " + i);
                            }
                            // the all-reduce of the forward pass comes once more
                            long more = size == 1 ? 0 : LAYERS;
                            Assert.assertEquals(twice.total(), once.total() + more);
                        }
                    });
        }
    }

    private static List<float[]> pass(
            NDManager parent, RegionMappings mappings, int rank, boolean recomputed) {
        List<float[]> results = new ArrayList<>();
        try (NDManager manager = parent.newSubManager()) {
            NDArray leaf = TestArrays.leaf(TestArrays.random(manager, 1, new Shape(5, 4)));
            List<NDArray> weights = new ArrayList<>();
            NDArray x = TestArrays.times(leaf, 2);
            for (int i = 0; i < LAYERS; i++) {
                int seed = 10 * i + 100 * rank;
                NDArray first =
                        TestArrays.leaf(TestArrays.random(manager, seed + 2, new Shape(4, 6)));
                NDArray second =
                        TestArrays.leaf(TestArrays.random(manager, seed + 3, new Shape(6, 4)));
                weights.add(first);
                weights.add(second);
                UnaryOperator<NDArray> layer =
                        in -> {
                            NDArray y = mappings.copyToRegion(in).matMul(first).tanh();
                            return mappings.reduceFromRegion(y.matMul(second)).add(in);
                        };
                x =
                        recomputed
                                ? new Recomputation(
                                                in -> layer.apply(in.head()),
                                                new AtomicReference<>())
                                        .forward(new NDList(x))
                                : layer.apply(x);
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

    /**
     * Parameters get their gradients also where the input needs none, as that of the first layer.
     */
    @Test(timeOut = 60_000)
    public void anInputThatNeedsNoGradient() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray x = TestArrays.random(manager, 1, new Shape(5, 4));
            NDArray weight = TestArrays.leaf(TestArrays.random(manager, 2, new Shape(4, 3)));
            AtomicInteger calls = new AtomicInteger();
            NDArray y =
                    new Recomputation(
                                    in -> {
                                        calls.incrementAndGet();
                                        return in.head().matMul(weight);
                                    },
                                    new AtomicReference<>())
                            .forward(new NDList(x));
            Assert.assertEquals(calls.get(), 1);
            NDArray gradient = TestArrays.random(manager, 3, y.getShape());
            Autograd.backward(y, gradient);
            Assert.assertEquals(calls.get(), 2);
            TestArrays.assertGradient(weight, x.transpose().matMul(gradient), "weight");
        }
    }

    /** The inner arrays of a pass are closed when it returns. */
    @Test(timeOut = 60_000)
    public void innerArraysAreNotKept() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray x = TestArrays.leaf(TestArrays.random(manager, 1, new Shape(5, 4)));
            List<NDArray> inner = new ArrayList<>();
            NDArray y =
                    new Recomputation(
                                    in -> {
                                        NDArray hidden = in.head().tanh();
                                        inner.add(hidden);
                                        return hidden.square();
                                    },
                                    new AtomicReference<>())
                            .forward(new NDList(x));
            Assert.assertThrows(IllegalStateException.class, () -> inner.get(0).toFloatArray());
            Autograd.backward(y, manager.ones(y.getShape()));
            Assert.assertThrows(IllegalStateException.class, () -> inner.get(1).toFloatArray());
        }
    }

    /** What a function throws in the backward pass ends that, and the cause is kept. */
    @Test(timeOut = 60_000)
    public void aFailureInTheBackwardPass() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray x = TestArrays.leaf(TestArrays.random(manager, 1, new Shape(5, 4)));
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
                            .forward(new NDList(x));
            NDArray ones = manager.ones(y.getShape());
            Assert.assertThrows(RuntimeException.class, () -> Autograd.backward(y, ones));
            Assert.assertEquals(failure.get().getMessage(), "the second time");
        }
    }
}
