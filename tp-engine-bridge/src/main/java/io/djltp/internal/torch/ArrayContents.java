package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;

import org.bytedeco.pytorch.Tensor;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.lang.reflect.Field;
import java.util.Arrays;

/**
 * Gives an array other contents: the object stays, so that whoever keeps it, such as a predictor
 * that has computed with it before, sees them.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class ArrayContents {

    private static final Logger logger = LoggerFactory.getLogger(ArrayContents.class);

    private ArrayContents() {}

    /**
     * Replaces what an array holds, and frees that. Views of it keep the old memory.
     *
     * @param array the array; afterwards it requires a gradient only if told so again
     * @param contents an array of the same shape, type and device, which is closed
     */
    public static void replace(NDArray array, NDArray contents) {
        array.intern(contents);
        dropBuffer(array);
    }

    /**
     * Returns a view of any shape of a few elements: that at (i, j, ...) is number i + j + ... of
     * them. Libtorch lets everything be written into it, where it refuses a single element that is
     * expanded to a shape.
     *
     * @param line the elements, one more than the sum of the lengths of all axes less one each
     * @param shape the shape
     * @return the view
     */
    public static NDArray overlapped(NDArray line, Shape shape) {
        long[] strides = new long[shape.dimension()];
        Arrays.fill(strides, 1);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor elements = TensorView.of(line).tensor();
            Tensor view = elements.as_strided(shape.getShape(), strides);
            return TensorView.toArray(view.detach(), line.getManager()); // to autograd no view
        }
    }

    /**
     * DJL keeps the Java buffer that an array was loaded into until the array is closed, though
     * nothing points to it any more. There is no method to let go of it; without access to the
     * field the memory comes free later.
     */
    private static void dropBuffer(NDArray array) {
        try {
            Field buffer = PtNDArray.class.getDeclaredField("dataRef");
            buffer.setAccessible(true);
            buffer.set(array, null);
        } catch (ReflectiveOperationException | RuntimeException e) {
            logger.debug("The buffer of a loaded array stays until the array is closed", e);
        }
    }
}
