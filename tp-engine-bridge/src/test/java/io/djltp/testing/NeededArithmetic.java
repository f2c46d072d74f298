package io.djltp.testing;

import ai.djl.Device;

import io.djltp.internal.torch.Float16Product;
import io.djltp.torch.Precision;

import org.testng.SkipException;

/** What a test needs of the processor: it is skipped where that is missing. */
public final class NeededArithmetic {

    private NeededArithmetic() {}

    /** Skips the test where products in bfloat16 are not to be had. */
    public static void bfloat16() {
        Precision.BFLOAT16
                .whyNot(Device.cpu())
                .ifPresent(
                        why -> {
                            throw new SkipException("bfloat16 " + why);
                        });
    }

    /** Skips the test where libtorch brings no product in float16 with sums in float32 along. */
    public static void float16Products() {
        if (!Float16Product.isThere(false)) {
            throw new SkipException("libtorch has no product in float16 for processors here");
        }
    }
}
