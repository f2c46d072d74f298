package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntConsumer;

/** Gradients without DJL's collector: in any thread, in as many at a time as there are ranks. */
@SuppressWarnings("try") // a scope is used by being open
public class AutogradTest extends RecordedTest {

    private static final int ROUNDS = 4_000;

    @Test
    public void backwardReachesTheLeaves() {
        NDArray a = TestArrays.leaf(manager.create(new float[] {1, 2, 3}));
        NDArray b = TestArrays.leaf(manager.create(new float[] {4, 5, 6}));
        Assert.assertNull(Autograd.gradient(a), "before any backward pass");
        Autograd.zeroGradient(a); // nothing to set to zero
        Assert.assertNull(Autograd.gradient(a));
        Autograd.backward(a.mul(b), manager.create(new float[] {1, 10, 100}));
        TestArrays.assertGradient(a, manager.create(new float[] {4, 50, 600}), "a");
        TestArrays.assertGradient(b, manager.create(new float[] {1, 20, 300}), "b");
        Autograd.zeroGradient(a);
        TestArrays.assertGradient(a, manager.zeros(new Shape(3)), "a, set to zero");
        TestArrays.assertGradient(b, manager.create(new float[] {1, 20, 300}), "b, left");
    }

    @Test
    public void theGradientIsNoCopy() {
        NDArray leaf = TestArrays.leaf(manager.ones(new Shape(3)));
        Autograd.backward(TestArrays.times(leaf, 2), manager.ones(new Shape(3)));
        try (NDArray gradient = Autograd.gradient(leaf)) {
            gradient.muli(5);
        }
        TestArrays.assertGradient(leaf, manager.full(new Shape(3), 10f), "scaled in place");
    }

    @Test(timeOut = 60_000)
    public void theModeIsThatOfTheThread() throws Exception {
        NDArray leaf = TestArrays.leaf(manager.ones(new Shape(3)));
        // TestNG runs this method in another thread than open()
        try (Autograd.GradMode mine = Autograd.gradMode(true)) {
            try (Autograd.GradMode off = Autograd.gradMode(false)) {
                Assert.assertFalse(records(leaf));
                try (Autograd.GradMode inner = Autograd.gradMode(true)) {
                    Assert.assertTrue(records(leaf));
                }
                Assert.assertFalse(records(leaf), "restored");
                inThreads(1, i -> Assert.assertTrue(records(leaf), "a fresh thread"));
                Assert.assertFalse(records(leaf), "after the other thread");
            }
            Assert.assertTrue(records(leaf), "restored");
            Refusals.throwsState(
                    () -> {
                        try (Autograd.GradMode off = Autograd.gradMode(false)) {
                            throw new IllegalStateException("on the way");
                        }
                    });
            Assert.assertTrue(records(leaf), "restored after an exception");
        }
    }

    private static boolean records(NDArray leaf) {
        try (NDArray result = leaf.mul(2)) {
            return TensorView.of(result).requiresGradient();
        }
    }

    /** Runs a task in fresh threads, and waits for them. */
    private static void inThreads(int count, IntConsumer task) throws Exception {
        List<FutureTask<Void>> tasks = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int number = i;
            tasks.add(new FutureTask<>(() -> task.accept(number), null));
            new Thread(tasks.get(i)).start();
        }
        for (FutureTask<Void> each : tasks) {
            each.get();
        }
    }

    /** Fresh threads, each of which wants another count than those beside it. */
    @Test(timeOut = 120_000)
    public void everyThreadGetsTheCountThatItHasSet() throws Exception {
        AtomicInteger before = new AtomicInteger();
        inThreads(1, i -> before.set(Autograd.getThreads()));
        AtomicInteger wrong = new AtomicInteger();
        int width = 8;
        for (int round = 0; round < ROUNDS / width; round++) {
            inThreads(
                    width,
                    i -> {
                        Autograd.setThreads(1 + i);
                        wrong.addAndGet(Autograd.getThreads() == 1 + i ? 0 : 1);
                    });
        }
        Assert.assertEquals(wrong.get(), 0, "of " + ROUNDS);
        inThreads(1, i -> Assert.assertEquals(Autograd.getThreads(), before.get(), "of others"));
    }

    /** While a thread sets its own again and again, threads start with the count of all. */
    @Test(timeOut = 120_000)
    public void aThreadStartsWithTheCountOfNoOther() throws Exception {
        AtomicInteger before = new AtomicInteger();
        inThreads(1, i -> before.set(Autograd.getThreads()));
        AtomicBoolean done = new AtomicBoolean();
        FutureTask<Void> other =
                new FutureTask<>(
                        () -> {
                            for (int i = 0; !done.get(); i++) {
                                Autograd.setThreads(before.get() + 1 + i % 2);
                            }
                        },
                        null);
        new Thread(other).start();
        AtomicInteger wrong = new AtomicInteger();
        for (int round = 0; round < ROUNDS; round++) {
            inThreads(1, i -> wrong.addAndGet(Autograd.getThreads() == before.get() ? 0 : 1));
        }
        done.set(true);
        other.get();
        Assert.assertEquals(wrong.get(), 0, "of " + ROUNDS);
    }

    @Test
    public void noThreadAtAllIsRefused() {
        Assert.assertEquals(
                Refusals.throwsArgument(() -> Autograd.setThreads(0)),
                "The number of threads must be 1 or more, not 0");
    }

    /** Scopes may lie in each other, and in a thread that is set so anyway. */
    @Test
    public void smallNumbersAreTakenForZeroAsLongAsSaid() {
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
        Shape shape = new Shape(50);
        inThreads(
                4,
                i -> {
                    try (NDManager own = NDManager.newBaseManager()) {
                        NDArray leaf = TestArrays.leaf(own.ones(shape));
                        for (int pass = 0; pass < 100; pass++) {
                            try (NDArray output = TestArrays.times(leaf, i + 1);
                                    NDArray ones = own.ones(shape)) {
                                Autograd.backward(output, ones);
                            }
                        }
                        NDArray expected = own.full(shape, 100f * (i + 1));
                        TestArrays.assertGradient(leaf, expected, "factor " + i);
                    }
                });
    }

    @Test
    public void aDetachedViewHasNoGraphAndItsOwnManager() {
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
