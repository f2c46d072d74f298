package io.djltp.internal.torch;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.lang.reflect.Proxy;

/** A view is the array: the same memory and the same place in the autograd graph. */
@SuppressWarnings("try") // a scope is used by being open
public class TensorViewTest {

    @Test
    public void bothWriteTheSameMemory() {
        try (NDManager manager = NDManager.newBaseManager();
                PointerScope scope = new PointerScope()) {
            NDArray array = manager.zeros(new Shape(2, 3));
            TensorView view = TensorView.of(array);
            view.tensor().select(0, 1).fill_(new Scalar(5f));
            Assert.assertEquals(array.toFloatArray(), new float[] {0, 0, 0, 5, 5, 5});
            array.addi(1);
            Assert.assertEquals(view.tensor().sum().item_float(), 21f);
            Assert.assertEquals(TensorView.of(array).address(), view.address());
            // a slice begins where its first element lies
            NDArray slice = array.get("1:");
            Assert.assertEquals(TensorView.of(slice).address(), view.address() + 3 * 4);
        }
    }

    @Test
    public void aTensorHandedToDjlSharesItsMemory() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray source = manager.ones(new Shape(2, 3));
            NDArray handed;
            try (PointerScope scope = new PointerScope()) {
                Tensor tensor = TensorView.of(source).tensor().view(-1);
                handed = TensorView.toArray(tensor, manager);
            }
            System.gc(); // the array has a handle of its own
            Assert.assertEquals(handed.getShape(), new Shape(6));
            handed.muli(3);
            Assert.assertEquals(source.toFloatArray(), new float[] {3, 3, 3, 3, 3, 3});
            source.close();
            Assert.assertEquals(handed.sum().getFloat(), 18f);
        }
    }

    @Test
    public void theViewDescribesTheArray() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray array = manager.zeros(new Shape(4, 0, 2), DataType.FLOAT64);
            TensorView view = TensorView.of(array);
            Assert.assertEquals(view.getShape(), new Shape(4, 0, 2));
            Assert.assertEquals(view.size(), 0);
            Assert.assertEquals(view.getDevice(), Device.cpu());
            Assert.assertEquals(view.toString(), "(4, 0, 2) float64");
            TensorView scalar = TensorView.of(manager.create(1f));
            Assert.assertEquals(scalar.getShape(), new Shape());
            Assert.assertEquals(scalar.size(), 1);
            // the types that this version of DJL can make at all
            for (DataType type :
                    new DataType[] {
                        DataType.FLOAT32,
                        DataType.FLOAT64,
                        DataType.FLOAT16,
                        DataType.UINT8,
                        DataType.INT8,
                        DataType.INT32,
                        DataType.INT64,
                        DataType.BOOLEAN
                    }) {
                NDArray typed = manager.zeros(new Shape(2), type);
                Assert.assertEquals(TensorView.of(typed).getDataType(), type);
            }
        }
    }

    @Test
    public void gapsInMemoryAreSeen() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray array = manager.zeros(new Shape(2, 3));
            Assert.assertTrue(TensorView.of(array).isContiguous());
            Assert.assertTrue(TensorView.of(array.get("1:")).isContiguous());
            Assert.assertFalse(TensorView.of(array.get(":, 1:")).isContiguous());
            Assert.assertFalse(TensorView.of(array.transpose()).isContiguous());
            Assert.assertFalse(
                    TensorView.of(manager.zeros(new Shape(1)).broadcast(new Shape(9)))
                            .isContiguous());
        }
    }

    /** What {@code hasGradient()} of DJL does not tell: whether a result is part of a graph. */
    @Test
    public void leavesAndResultsRequireGradients() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode on = Autograd.gradMode(true)) {
            NDArray leaf = manager.ones(new Shape(3));
            Assert.assertFalse(TensorView.of(leaf).requiresGradient());
            leaf.setRequiresGradient(true);
            Assert.assertTrue(TensorView.of(leaf).requiresGradient());
            NDArray result = leaf.mul(2);
            Assert.assertTrue(TensorView.of(result).requiresGradient());
            Assert.assertFalse(result.hasGradient());
            Assert.assertFalse(TensorView.of(result.stopGradient()).requiresGradient());
        }
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
        String message =
                Assert.expectThrows(IllegalArgumentException.class, () -> TensorView.of(other))
                        .getMessage();
        Assert.assertEquals(
                message,
                "An array of DJL's PyTorch engine is needed, but this is a "
                        + other.getClass().getName());
    }
}
