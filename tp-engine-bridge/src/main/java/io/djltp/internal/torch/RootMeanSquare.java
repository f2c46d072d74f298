package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.DoubleOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch;

/** The normalization of rows by their root mean square. */
@SuppressWarnings("try") // a scope is used by being open
public final class RootMeanSquare {

    private RootMeanSquare() {}

    /**
     * Computes w x / sqrt(mean(x^2) + eps), the mean over the last axis. Numbers of 16 bits are
     * squared and summed in float32.
     *
     * @param input the rows x, [x1, ..., xn, D]
     * @param weight the weight w, [D]
     * @param epsilon what keeps the root of a row of zeros from 0
     * @return the normalized rows, attached to the manager of the input
     */
    public static NDArray normalize(NDArray input, NDArray weight, double epsilon) {
        LibTorch.load();
        try (PointerScope scope = new PointerScope()) {
            Tensor output =
                    torch.rms_norm(
                            TensorView.of(input).tensor(),
                            weight.getShape().getShape(),
                            new TensorOptional(TensorView.of(weight).tensor()),
                            new DoubleOptional(epsilon));
            return TensorView.toArray(output, input.getManager());
        }
    }
}
