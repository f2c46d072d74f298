package io.djltp.internal.torch;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

/** A function that autograd knows by its value and gradient alone. */
public class GradientKeeperTest extends RecordedTest {

    private GradientKeeper keeper;

    @BeforeMethod
    public void openKeeper() {
        keeper = new GradientKeeper();
    }

    @AfterMethod
    public void closeKeeper() {
        keeper.close();
    }

    @Test
    public void theGradientIsTheOneThatWasGiven() {
        NDArray leaf = TestArrays.leaf(manager.ones(new Shape(2, 3)));
        NDArray hidden = TestArrays.times(leaf, 2);
        NDArray gradient = manager.arange(6f).reshape(2, 3);
        NDArray loss = keeper.scalar(hidden, manager.create(7f), gradient);
        gradient.close(); // taken over
        Assert.assertEquals(loss.getFloat(), 7f);
        System.gc();
        Autograd.backward(loss, manager.create(1f));
        TestArrays.assertGradient(leaf, manager.arange(6f).reshape(2, 3).mul(2), "backward");
    }

    @Test
    public void whatComesFromAboveScalesIt() {
        NDArray leaf = leaf(manager);
        NDArray first = keeper.scalar(leaf, manager.create(1f), manager.arange(4f));
        NDArray second = keeper.scalar(leaf, manager.create(2f), manager.ones(new Shape(4)));
        NDArray total = TestArrays.times(first, 10).add(TestArrays.times(second, 3));
        Assert.assertEquals(total.getFloat(), 16f);
        Autograd.backward(total, manager.create(2f));
        NDArray expected = manager.create(new float[] {6, 26, 46, 66});
        TestArrays.assertGradient(leaf, expected, "20 x i + 6");
        keeper.clearTaken();
    }

    @Test
    public void aSecondBackwardPassIsAnError() {
        NDArray loss = keeper.scalar(leaf(manager), manager.create(1f), manager.arange(4f));
        NDArray once = TestArrays.times(loss, 2);
        NDArray twice = TestArrays.times(loss, 3);
        Autograd.backward(once, manager.create(1f));
        Refusals.expect(
                EngineException.class,
                () -> Autograd.backward(twice, manager.create(1f)),
                "second");
    }

    /** A pass that is given up, such as one whose loss is NaN, leaves nothing. */
    @Test
    public void aGradientThatNobodyTakesGoesWithItsPass() {
        NDArray kept = keeper.scalar(leaf(manager), manager.create(1f), manager.arange(4f));
        for (int i = 0; i < 20; i++) {
            try (NDManager pass = manager.newSubManager()) {
                keeper.scalar(leaf(pass), pass.create(1f), pass.arange(4f));
                Assert.assertEquals(keeper.size(), 2);
            }
            Assert.assertEquals(keeper.size(), 1);
        }
        Autograd.backward(kept, manager.create(1f)); // of a pass that is still there
        keeper.clearTaken();
        Assert.assertEquals(keeper.size(), 0);
    }

    private static NDArray leaf(NDManager manager) {
        return TestArrays.leaf(manager.ones(new Shape(4)));
    }
}
