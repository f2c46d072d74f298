package io.djltp.exchange;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;

import java.io.IOException;
import java.util.Locale;

/** Which numbers the floating types of 16 bits hold. */
final class SixteenBits {

    // from here on the nearest is infinite
    private static final float END_OF_FLOAT16 = 65520;
    private static final float END_OF_BFLOAT16 = 0x1.ffp127f;

    private SixteenBits() {}

    /**
     * Refuses finite numbers that a type would make infinite. Infinite ones may be meant.
     *
     * @param values the numbers, of any floating type, whose manager gets what is computed
     * @param type what they are to be written as; one of more bits holds all
     * @param name the name of the tensor that they are of
     * @throws IOException if the type does not hold one of them; the message names both
     */
    static void check(NDArray values, DataType type, String name) throws IOException {
        boolean half = type == DataType.FLOAT16;
        if (!half && type != DataType.BFLOAT16 || values.getDataType() == DataType.FLOAT16) {
            return;
        }
        NDArray sizes = values.abs();
        NDArray tooLarge =
                sizes.gte(half ? END_OF_FLOAT16 : END_OF_BFLOAT16)
                        .logicalAnd(sizes.lt(Float.POSITIVE_INFINITY));
        if (tooLarge.any().getBoolean()) {
            Number most = sizes.booleanMask(tooLarge).max().toArray()[0];
            throw new IOException(
                    String.format(
                            Locale.ROOT,
                            "tensor %s has numbers that %s cannot hold, such as %s: it ends at %s."
                                    + " Nothing is written; write %s",
                            name,
                            half ? "float16" : "bfloat16",
                            most,
                            half ? "65504" : "3.3895e38",
                            half ? "bfloat16 or float32" : "float32"));
        }
    }
}
