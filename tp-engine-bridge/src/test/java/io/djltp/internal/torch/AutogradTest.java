package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.libtorch.LibTorch;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntSupplier;

/** Gradients without DJL's collector: in any thread, in as many at a time as there are ranks. */
@SuppressWarnings("try") // a scope is used by being open
public class AutogradTest {

    private static final int ROUNDS = 4_000;

    private Autograd.GradMode on;

    @BeforeMethod
    public void record() {
        on = Autograd.gradMode(true);
    }

    @AfterMethod
    public void restore() {
        on.close();
    }

    @Test
    public void backwardReachesTheLeaves() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray a = TestArrays.leaf(manager.create(new float[] {1, 2, 3}));
            NDArray b = TestArrays.leaf(manager.create(new float[] {4, 5, 6}));
            Assert.assertNull(Autograd.gradient(a), "before any backward pass");
            Autograd.zeroGradient(a); // nothing to set to zero
            Assert.assertNull(Autograd.gradient(a));
            NDArray product = a.mul(b);
            Autograd.backward(product, manager.create(new float[] {1, 10, 100}));
            TestArrays.assertGradient(a, manager.create(new float[] {4, 50, 600}), "a");
            TestArrays.assertGradient(b, manager.create(new float[] {1, 20, 300}), "b");
            Autograd.zeroGradient(a);
            TestArrays.assertGradient(a, manager.zeros(new Shape(3)), "a, set to zero");
            TestArrays.assertGradient(b, manager.create(new float[] {1, 20, 300}), "b, left");
        }
    }

    @Test
    public void theGradientIsNoCopy() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray leaf = TestArrays.leaf(manager.ones(new Shape(3)));
            Autograd.backward(TestArrays.times(leaf, 2), manager.ones(new Shape(3)));
            try (NDArray gradient = Autograd.gradient(leaf)) {
                gradient.muli(5);
            }
            TestArrays.assertGradient(leaf, manager.full(new Shape(3), 10f), "scaled in place");
        }
    }

    @Test(timeOut = 60_000)
    public void theModeIsThatOfTheThread() throws Exception {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray leaf = TestArrays.leaf(manager.ones(new Shape(3)));
            AtomicReference<Throwable> failure = new AtomicReference<>();
            // TestNG runs this method in another thread than record()
            try (Autograd.GradMode mine = Autograd.gradMode(true)) {
                try (Autograd.GradMode off = Autograd.gradMode(false)) {
                    Assert.assertFalse(records(leaf));
                    try (Autograd.GradMode inner = Autograd.gradMode(true)) {
                        Assert.assertTrue(records(leaf));
                    }
                    Assert.assertFalse(records(leaf), "restored");
                    Thread fresh =
                            new Thread(
                                    () -> {
                                        try {
                                            Assert.assertTrue(records(leaf), "a fresh thread");
                                        } catch (Throwable t) {
                                            failure.set(t);
                                        }
                                    });
                    fresh.start();
                    fresh.join();
                    Assert.assertNull(failure.get());
                    Assert.assertFalse(records(leaf), "after the other thread");
                }
                Assert.assertTrue(records(leaf), "restored");
                Assert.expectThrows(
                        IllegalStateException.class,
                        () -> {
                            try (Autograd.GradMode off = Autograd.gradMode(false)) {
                                throw new IllegalStateException("on the way");
                            }
                        });
                Assert.assertTrue(records(leaf), "restored after an exception");
            }
        }
    }

    private static boolean records(NDArray leaf) {
        try (NDArray result = leaf.mul(2)) {
            return TensorView.of(result).requiresGradient();
        }
    }

    /** Fresh threads, each of which wants another count than those beside it. */
    @Test(timeOut = 120_000)
    public void everyThreadGetsTheCountThatItHasSet() throws Exception {
        int before = inFreshThread(Autograd::getThreads);
        AtomicInteger wrong = new AtomicInteger();
        int width = 8;
        for (int round = 0; round < ROUNDS / width; round++) {
            Thread[] threads = new Thread[width];
            for (int i = 0; i < width; i++) {
                int wanted = 1 + i;
                threads[i] =
                        new Thread(
                                () -> {
                                    Autograd.setThreads(wanted);
                                    if (Autograd.getThreads() != wanted) {
                                        wrong.incrementAndGet();
                                    }
                                });
            }
            for (Thread thread : threads) {
                thread.start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
        }
        Assert.assertEquals(wrong.get(), 0, "of " + ROUNDS);
        Assert.assertEquals(inFreshThread(Autograd::getThreads), before, "of other threads");
    }

    private static int inFreshThread(IntSupplier task) throws InterruptedException {
        AtomicInteger result = new AtomicInteger();
        Thread thread = new Thread(() -> result.set(task.getAsInt()));
        thread.start();
        thread.join();
        return result.get();
    }

    @Test
    public void noThreadAtAllIsRefused() {
        IllegalArgumentException e =
                Assert.expectThrows(IllegalArgumentException.class, () -> Autograd.setThreads(0));
        Assert.assertEquals(e.getMessage(), "The number of threads must be 1 or more, not 0");
    }

    /** Scopes may lie in each other, and in a thread that is set so anyway. */
    @Test
    public void smallNumbersAreTakenForZeroAsLongAsSaid() {
        LibTorch.load();
        Assert.assertFalse(FlushDenormals.isOn());
        try (FlushDenormals outer = new FlushDenormals()) {
            if (!FlushDenormals.isOn()) {
                throw new SkipException("this processor cannot");
            }
            try (FlushDenormals inner = new FlushDenormals()) {
                Assert.assertTrue(FlushDenormals.isOn());
            }
            Assert.assertTrue(FlushDenormals.isOn(), "still in the outer scope");
        }
        Assert.assertFalse(FlushDenormals.isOn());
    }

    /** DJL allows one gradient collector in a JVM; ranks need one backward pass each. */
    @Test(timeOut = 60_000)
    public void threadsComputeGradientsAtTheSameTime() throws Exception {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Thread[] threads = new Thread[4];
        for (int i = 0; i < threads.length; i++) {
            int factor = i + 1;
            threads[i] =
                    new Thread(
                            () -> {
                                try (NDManager manager = NDManager.newBaseManager()) {
                                    NDArray leaf = TestArrays.leaf(manager.ones(new Shape(50)));
                                    for (int pass = 0; pass < 100; pass++) {
                                        try (NDArray output = TestArrays.times(leaf, factor);
                                                NDArray ones = manager.ones(new Shape(50))) {
                                            Autograd.backward(output, ones);
                                        }
                                    }
                                    TestArrays.assertGradient(
                                            leaf,
                                            manager.full(new Shape(50), 100f * factor),
                                            "factor " + factor);
                                } catch (Throwable t) {
                                    failure.set(t);
                                }
                            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        Assert.assertNull(failure.get(), "" + failure.get());
    }

    @Test
    public void aDetachedViewHasNoGraphAndItsOwnManager() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray leaf = TestArrays.leaf(manager.ones(new Shape(3)));
            NDArray result = TestArrays.times(leaf, 2);
            try (NDManager other = manager.newSubManager()) {
                NDArray view = Autograd.detach(result, other);
                Assert.assertSame(view.getManager(), other);
                Assert.assertFalse(TensorView.of(view).requiresGradient());
                Assert.assertEquals(TensorView.of(view).address(), TensorView.of(result).address());
            }
            Assert.assertEquals(result.sum().getFloat(), 6f); // outlives its view
        }
    }
}
