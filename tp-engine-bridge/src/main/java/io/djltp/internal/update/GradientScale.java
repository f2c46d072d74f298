package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;

/** The scale of a loss in a gradient. */
@SuppressWarnings("try") // a scope is used by being open
public final class GradientScale {

    private GradientScale() {}

    /**
     * Multiplies a gradient in place, and looks whether it was finite.
     *
     * @param gradient the gradient, of any floating type
     * @param factor one divided by the scale
     * @return whether all its elements were finite
     */
    public static boolean takeFrom(NDArray gradient, float factor) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor tensor = TensorView.of(gradient).tensor();
            tensor.mul_(new Scalar(factor));
            return HostReads.number(tensor.mul(new Scalar(0f)).sum()) == 0; // or NaN
        }
    }
}
