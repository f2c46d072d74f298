package io.djltp.torch;

import ai.djl.Device;

import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.pytorch.Context;
import org.bytedeco.pytorch.global.torch;

/**
 * How GPUs compute products of matrices in float32: exactly, or with factors rounded to {@link
 * Precision#TF32}, which has the range of float32 and 11 bits of significand. A setting of libtorch
 * for all products of the process, DJL's layers and the fused head's among them: {@code
 * torch.backends.cuda.matmul.allow_tf32} in Python.
 */
public final class Float32Products {

    private Float32Products() {}

    /**
     * Chooses how products are computed from now on. To be called before a training begins.
     *
     * @param precision {@link Precision#FLOAT32}, as libtorch starts, or {@link Precision#TF32}
     * @param devices the devices of the ranks, for TF32 at least one
     * @throws IllegalArgumentException if a device does not have TF32, such as a processor, or none
     *     is given; or the precision is that of 16 bits, which layers choose for themselves
     */
    public static void set(Precision precision, Device... devices) {
        Errors.check(
                precision == Precision.FLOAT32 || precision == Precision.TF32,
                "Products of float32 are computed in float32 or tf32, not in %s: that is for"
                        + " optPrecision of a layer",
                precision);
        Errors.check(
                precision != Precision.TF32 || devices.length != 0,
                "TF32 is an arithmetic of GPUs, and no device was given: name the devices of the"
                        + " ranks, such as Device.gpu(0), which are checked to have it");
        for (Device device : devices) {
            precision.check(device);
        }
        LibTorch.load();
        context().setAllowTF32CuBLAS(precision == Precision.TF32);
    }

    /**
     * Returns what was chosen.
     *
     * @return float32 or tf32
     */
    public static Precision get() {
        LibTorch.load();
        return context().allowTF32CuBLAS() ? Precision.TF32 : Precision.FLOAT32;
    }

    private static Context context() {
        return torch.globalContext();
    }
}
