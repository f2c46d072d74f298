package io.djltp.llm;

import io.djltp.internal.Errors;
import io.djltp.internal.decode.PackedWeight;

import java.util.Arrays;
import java.util.Locale;

/**
 * How the weights of a model are held for generation. Activations, sums and the cache are float32.
 */
public enum WeightType {

    /** 4 bytes a number: the weights as they are. */
    FLOAT32(PackedWeight.Type.FLOAT32),

    /** 2 bytes a number, with 8 bits of significand. Fast where the processor multiplies them. */
    BFLOAT16(PackedWeight.Type.BFLOAT16),

    /** 2 bytes a number, with 11 bits of significand; up to 65,504. */
    FLOAT16(PackedWeight.Type.FLOAT16),

    /** 1 byte a number, with a scale for each output of a layer. */
    INT8(PackedWeight.Type.INT8),

    /**
     * 5 bits a number: 4, and a scale and an offset for each 32 inputs of an output. A part of a
     * few features is filled up to 32.
     */
    INT4(PackedWeight.Type.INT4);

    private final PackedWeight.Type type;

    WeightType(PackedWeight.Type type) {
        this.type = type;
    }

    PackedWeight.Type type() {
        return type;
    }

    /**
     * Returns the type of a name.
     *
     * @param name {@code float32}, {@code bfloat16}, {@code float16}, {@code int8} or {@code int4}
     * @return the type
     * @throws IllegalArgumentException if the name is another one
     */
    public static WeightType of(String name) {
        for (WeightType each : values()) {
            if (each.toString().equals(name)) {
                return each;
            }
        }
        throw Errors.argument(
                "The type of weights must be one of %s, not %s", Arrays.toString(values()), name);
    }

    /**
     * Returns the kernel that computes products with such weights on this processor.
     *
     * @return the library and its arithmetic; of a type for which the processor has none, that its
     *     numbers are widened to float32
     */
    public String getKernel() {
        return PackedWeight.kernelOf(type);
    }

    /** {@return the name that {@link #of} takes} */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
