package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.NDScope;
import ai.djl.ndarray.types.Shape;

import io.djltp.testing.RecordedTest;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.concurrent.CompletableFuture;

/** What {@link JavaMemory} notes of DJL's arrays, and what it leaves of DJL's scopes. */
@SuppressWarnings("try") // a scope is used by being open
public class JavaMemoryTest extends RecordedTest {

    /** Arrays of numbers are noted, of any manager; what libtorch makes is not. */
    @Test
    public void testNotes() {
        NDArray array = manager.ones(new Shape(2));
        NDManager pass = manager.newSubManager();
        JavaMemory memory = JavaMemory.keep(pass);
        array.add(array).exp();
        Assert.assertEquals(memory.size(), 0);
        array.mul(2);
        array.div(2).pow(2);
        Assert.assertEquals(memory.size(), 3);
        try (NDManager own = NDManager.newBaseManager()) {
            own.create(new float[] {1, 2});
        }
        Assert.assertEquals(memory.size(), 4);
        memory.close();
        array.mul(2);
        Assert.assertEquals(memory.size(), 4, "kept, and no more noted");
        pass.close();
        Assert.assertEquals(memory.size(), 0, "after the pass");
    }

    /** Without a manager nothing is kept after the end; without a graph nothing ever is. */
    @Test
    public void testKeepsOnlyForGraph() {
        NDArray array = manager.ones(new Shape(2));
        JavaMemory memory = JavaMemory.keep();
        array.mul(2);
        try (JavaMemory inner = JavaMemory.keep()) {
            array.mul(2).mul(2);
            Assert.assertEquals(inner.size(), 2);
        }
        array.mul(2);
        Assert.assertEquals(memory.size(), 2);
        memory.close();
        Assert.assertEquals(memory.size(), 0);
        try (Autograd.GradMode off = Autograd.gradMode(false);
                JavaMemory none = JavaMemory.keep(manager)) {
            array.mul(2);
            Assert.assertEquals(none.size(), 0);
        }
    }

    /** One that is closed after another that it is within leaves nothing that notes. */
    @Test
    public void testClosedInAnyOrder() {
        NDArray array = manager.ones(new Shape(2));
        JavaMemory first = JavaMemory.keep();
        JavaMemory second = JavaMemory.keep();
        first.close();
        second.close();
        array.mul(2);
        Assert.assertEquals(first.size() + second.size(), 0);
    }

    /** Scopes of DJL close what they would, around and within, and what is left is not closed. */
    @Test(timeOut = 20_000) // which is a thread of its own, with a stack of DJL's
    public void testScopes() {
        NDScope around = new NDScope();
        NDArray first = manager.create(1f);
        JavaMemory memory = JavaMemory.keep();
        NDArray second = manager.create(2f);
        NDArray third;
        NDArray fourth;
        try (NDScope within = new NDScope()) {
            third = manager.create(3f);
            fourth = manager.create(4f);
            NDScope.unregister(fourth);
        }
        Assert.assertEquals(memory.size(), 3);
        Assert.assertTrue(isClosed(third));
        Assert.assertFalse(isClosed(fourth));
        around.close(); // before the end
        Assert.assertTrue(isClosed(first) && isClosed(second));
        NDArray free = manager.create(5f);
        memory.close();
        NDArray last = manager.create(6f);
        Assert.assertFalse(isClosed(free) || isClosed(last));
    }

    /** A thread notes what it makes itself. */
    @Test(timeOut = 20_000)
    public void testThreads() {
        try (JavaMemory memory = JavaMemory.keep()) {
            CompletableFuture.runAsync(() -> manager.create(1f)).join();
            Assert.assertEquals(memory.size(), 0);
        }
    }

    private static boolean isClosed(NDArray array) {
        return ((ai.djl.pytorch.engine.PtNDArray) array).isReleased();
    }
}
