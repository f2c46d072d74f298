package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.core.Linear;

import io.djltp.internal.Errors;
import io.djltp.torch.Precision;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Objects;

/**
 * The product \(y = x W^T + b\) of a linear layer in a {@link Precision}, and in the graph, so that
 * its two products of the backward pass are computed in the precision too.
 *
 * <p>In bfloat16 the factors x, W and the gradient of y are rounded to 8 bits of significand, the
 * sums are float32, and the sum is rounded to 8 bits once: what PyTorch's autocast does. Arrays of
 * DJL are float32 on both sides: input, weight, bias, output and all gradients. With the unit
 * roundoff \(u = 2^{-8}\) and k features of the input, an element of y is
 *
 * <p>\(|\hat y - y| \le u |y| + (1 + u)(2u + u^2 + k 2^{-23}) \sum_j |x_j| |w_j|\)
 *
 * <p>from the exact one, and so are the gradients of x and W with the gradient of y as a factor.
 * (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1.) The bias is added in
 * float32. In float16 u is \(2^{-11}\), and what is below 6e-8 or above 65504 is lost: the trainer
 * takes it with a scaled loss only. From the forward to the backward pass the graph keeps the
 * rounded input and weight, 2 bytes an element, and not the input in float32.
 *
 * @param precision {@link Precision#FLOAT32}, {@link Precision#BFLOAT16} or, on GPUs, {@link
 *     Precision#FLOAT16}
 */
public record LinearProduct(Precision precision) {

    /**
     * Chooses a precision.
     *
     * @param precision float32, bfloat16 or float16
     * @throws IllegalArgumentException if it is another one
     */
    public LinearProduct {
        Objects.requireNonNull(precision, "precision");
        Errors.check(
                precision != Precision.TF32,
                "Parallel layers cannot choose tf32 for themselves: libtorch has one setting of"
                        + " it for the process, Float32Products.set. Use"
                        + " optPrecision(Precision.BFLOAT16), or FLOAT32");
    }

    /**
     * Computes \(x W^T + b\).
     *
     * @param x the input, [.., in]
     * @param weight the weight W, [out, in]
     * @param bias the bias b, [out], or {@code null}
     * @return the output, [.., out], attached to the manager of the input
     * @throws IllegalArgumentException if the device does not have the precision, or arrays are not
     *     float32 where it is another one
     */
    public NDArray of(NDArray x, NDArray weight, @Nullable NDArray bias) {
        if (precision == Precision.FLOAT32) {
            return OneDnnLinear.isFaster(x, weight)
                    ? OneDnnLinear.of(x, weight, bias)
                    : Linear.linear(x, weight, bias).singletonOrThrow();
        }
        check(x, weight);
        NDArray y =
                TorchScope.array(
                        x.getManager(),
                        () ->
                                torch.linear(
                                                round(TensorView.of(x).tensor()),
                                                round(TensorView.of(weight).tensor()),
                                                new TensorOptional())
                                        .to(ScalarType.Float));
        return bias == null ? y : y.addi(bias);
    }

    /**
     * Rounds a factor to the precision, as a part of the graph. For mappings of the bridge only.
     *
     * @param factor a tensor in float32
     * @return the tensor in the precision, with float32 the same
     */
    public Tensor round(Tensor factor) {
        return switch (precision) {
            case BFLOAT16 -> factor.to(ScalarType.BFloat16);
            case FLOAT16 -> factor.to(ScalarType.Half);
            default -> factor;
        };
    }

    /**
     * Checks that a product can be computed.
     *
     * @param x the input
     * @param weight the weight
     * @throws IllegalArgumentException as {@link #of(NDArray, NDArray, NDArray)}
     */
    public void check(NDArray x, NDArray weight) {
        if (precision == Precision.FLOAT32) {
            return;
        }
        precision.check(x.getDevice());
        if (weight.getDataType() != DataType.FLOAT32 || x.getDataType() != DataType.FLOAT32) {
            throw Errors.argument(
                    "A layer with optPrecision(%s) has float32 weights, inputs and outputs, and"
                            + " rounds the factors of its products itself; here the weight is %s"
                            + " and the input %s. Initialize the network in float32, or leave"
                            + " optPrecision out",
                    precision, weight.getDataType(), x.getDataType());
        }
    }
}
