package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.norm.Dropout;

import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestArrays;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.concurrent.CompletableFuture;

/** Random operations throw in the thread that asks for it, and no others do. */
public class RandomDrawsTest extends RecordedTest {

    @Test
    public void whatDrawsIsRefused() throws Exception {
        NDArray x = manager.ones(new Shape(4, 5));
        Runnable[] draws = {
            () -> Dropout.dropout(x, 0.1f, true),
            () -> manager.randomNormal(new Shape(3)),
            () -> manager.randomUniform(0, 1, new Shape(3)),
            () -> manager.randomInteger(0, 9, new Shape(3), DataType.INT32),
            () -> manager.randomPermutation(9)
        };
        RandomDraws.setRefused(true);
        try {
            for (Runnable draw : draws) {
                Exception e = Assert.expectThrows(RuntimeException.class, draw::run);
                Assert.assertTrue(RandomDraws.isRefusal(e), e.getMessage());
                CompletableFuture.runAsync(draw).get(); // in another thread
            }
            Dropout.dropout(x, 0, true);
            Dropout.dropout(x, 0.1f, false);
        } finally {
            RandomDraws.setRefused(false);
        }
        for (Runnable draw : draws) {
            draw.run();
        }
        Exception other =
                Assert.expectThrows(
                        RuntimeException.class, () -> x.matMul(manager.ones(new Shape(2, 2))));
        Assert.assertFalse(RandomDraws.isRefusal(other));
    }

    @Test
    public void gradientsAreWhatTheyAlwaysAre() {
        float[][] gradients = new float[2][];
        for (int i = 0; i < 2; i++) {
            NDArray x = TestArrays.leaf(manager.arange(12f).reshape(3, 4));
            RandomDraws.setRefused(i == 1);
            NDArray y = x.softmax(1).matMul(x.transpose()).logSoftmax(1).sum();
            RandomDraws.setRefused(false);
            Autograd.backward(y, manager.ones(new Shape()));
            gradients[i] = x.getGradient().toFloatArray();
        }
        Assert.assertEquals(gradients[1], gradients[0]);
    }

    /** A state that is set back draws the same again; one of another length is an error. */
    @Test
    public void aStateIsSetBack() {
        byte[] state = RandomDraws.getState();
        float[] first = manager.randomNormal(new Shape(5)).toFloatArray();
        Assert.assertNotEquals(RandomDraws.getState(), state);
        RandomDraws.setState(state);
        Assert.assertEquals(manager.randomNormal(new Shape(5)).toFloatArray(), first);
        Refusals.throwsArgument(() -> RandomDraws.checkState(new byte[3]), "bytes, not 3");
    }
}
