package io.djltp.internal.torch;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestArrays;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.lang.reflect.Proxy;

/** A view is the array: the same memory and the same place in the autograd graph. */
@SuppressWarnings("try") // a scope is used by being open
public class TensorViewTest extends RecordedTest {

    @Test
    public void bothWriteTheSameMemory() {
        try (PointerScope scope = new PointerScope()) {
            NDArray array = manager.zeros(new Shape(2, 3));
            TensorView view = TensorView.of(array);
            view.tensor().select(0, 1).fill_(new Scalar(5f));
            TestArrays.assertValues(array, 0, 0, 0, 5, 5, 5);
            array.addi(1);
            Assert.assertEquals(view.tensor().sum().item_float(), 21f);
            Assert.assertEquals(TensorView.of(array).address(), view.address());
            // a slice begins where its first element lies
            Assert.assertEquals(TensorView.of(array.get("1:")).address(), view.address() + 3 * 4);
        }
    }

    @Test
    public void aTensorHandedToDjlSharesItsMemory() {
        NDArray source = manager.ones(new Shape(2, 3));
        NDArray handed;
        try (PointerScope scope = new PointerScope()) {
            handed = TensorView.toArray(TensorView.of(source).tensor().view(-1), manager);
        }
        System.gc(); // the array has a handle of its own
        Assert.assertEquals(handed.getShape(), new Shape(6));
        handed.muli(3);
        TestArrays.assertValues(source, 3, 3, 3, 3, 3, 3);
        source.close();
        Assert.assertEquals(handed.sum().getFloat(), 18f);
    }

    @Test
    public void theViewDescribesTheArray() {
        TensorView view = TensorView.of(manager.zeros(new Shape(4, 0, 2), DataType.FLOAT64));
        Assert.assertEquals(view.getShape(), new Shape(4, 0, 2));
        Assert.assertEquals(view.size(), 0);
        Assert.assertEquals(view.getDevice(), Device.cpu());
        Assert.assertEquals(view.toString(), "(4, 0, 2) float64");
        TensorView scalar = TensorView.of(manager.create(1f));
        Assert.assertEquals(scalar.getShape(), new Shape());
        Assert.assertEquals(scalar.size(), 1);
        // the types that this version of DJL can make at all
        for (String name : "FLOAT32 FLOAT64 FLOAT16 UINT8 INT8 INT32 INT64 BOOLEAN".split(" ")) {
            DataType type = DataType.valueOf(name);
            NDArray typed = manager.zeros(new Shape(2), type);
            Assert.assertEquals(TensorView.of(typed).getDataType(), type);
        }
        Assert.assertEquals(TensorView.position(5, new Shape(2, 3)), "[1, 2]");
    }

    @Test
    public void gapsInMemoryAreSeen() {
        NDArray array = manager.zeros(new Shape(2, 3));
        NDArray[] whole = {array, array.get("1:")};
        NDArray[] gaps = {
            array.get(":, 1:"),
            array.transpose(),
            manager.zeros(new Shape(1)).broadcast(new Shape(9))
        };
        for (NDArray each : whole) {
            Assert.assertTrue(TensorView.of(each).isContiguous());
        }
        for (NDArray each : gaps) {
            Assert.assertFalse(TensorView.of(each).isContiguous());
        }
    }

    /** What {@code hasGradient()} of DJL does not tell: whether a result is part of a graph. */
    @Test
    public void leavesAndResultsRequireGradients() {
        NDArray leaf = manager.ones(new Shape(3));
        Assert.assertFalse(TensorView.of(leaf).requiresGradient());
        leaf.setRequiresGradient(true);
        Assert.assertTrue(TensorView.of(leaf).requiresGradient());
        NDArray result = leaf.mul(2);
        Assert.assertTrue(TensorView.of(result).requiresGradient());
        Assert.assertFalse(result.hasGradient());
        Assert.assertFalse(TensorView.of(result.stopGradient()).requiresGradient());
    }

    @Test
    public void arraysOfOtherEnginesAreRefused() {
        NDArray other =
                (NDArray)
                        Proxy.newProxyInstance(
                                NDArray.class.getClassLoader(),
                                new Class<?>[] {NDArray.class},
                                (proxy, method, arguments) -> {
                                    throw new AssertionError(method);
                                });
        Assert.assertEquals(
                Refusals.throwsArgument(() -> TensorView.of(other)),
                "An array of DJL's PyTorch engine is needed, but this is a "
                        + other.getClass().getName());
    }
}
