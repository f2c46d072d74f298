package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** A checksum of an array's bits, computed on its device. */
@SuppressWarnings("try") // a scope is used by being open
public final class Checksum {

    private static final long CHUNK = 1 << 20;

    /**
     * The words are summed in so many columns: a multiple of 8, as vectors have elements, and of a
     * prime number that is no factor of usual lengths, so that the rows of an array that are
     * exchanged come to other columns.
     */
    private static final long WIDTH = 8 * 127;

    // those of SplitMix64
    private static final long GAMMA = 0x9E3779B97F4A7C15L;
    private static final long MIX = 0xBF58476D1CE4E5B9L;

    private Checksum() {}

    /**
     * Returns a checksum: equal for equal bits, and different if any one element differs. That two
     * elements, or rows, were exchanged is seen unless they lie a multiple of 1,016 words apart.
     *
     * @param array a contiguous array of 4- or 8-byte elements, or of any size whose bytes fill
     *     whole 2-byte words
     * @return the checksum
     */
    public static long of(NDArray array) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            return of(elements(array));
        }
    }

    /**
     * Returns a checksum that takes all NaN for the same: which of their bits are set depends on
     * which operand an instruction has found one in, and not on what is computed. It takes several
     * passes over the array, and memory for a million elements.
     *
     * @param array the array, as for {@link #of}
     * @return the checksum, another one than {@link #of} returns
     */
    public static long withOneNaN(NDArray array) {
        try (TorchScope scope = TorchScope.withoutGraph();
                Scalar nan = new Scalar(Double.NaN)) {
            Tensor elements = elements(array);
            if (!elements.is_floating_point()) {
                return of(elements);
            }
            long sum = 0;
            long size = elements.numel();
            for (long start = 0; start < size; start += CHUNK) {
                try (TorchScope inner = TorchScope.withoutGraph()) {
                    Tensor chunk = elements.narrow(0, start, Math.min(CHUNK, size - start));
                    sum = 31 * sum + of(chunk.masked_fill(chunk.isnan(), nan));
                }
            }
            return sum;
        }
    }

    private static Tensor elements(NDArray array) {
        return TensorView.of(array).tensor().detach().contiguous().view(-1);
    }

    private static long of(Tensor elements) {
        ScalarType word = elements.element_size() % 4 == 0 ? ScalarType.Int : ScalarType.Short;
        if (elements.element_size() % 2 != 0) {
            word = ScalarType.Byte;
        }
        Tensor words = elements.view(word);
        long size = words.numel();
        if (size == 0) {
            return 0;
        }
        long width = Math.min(size, WIDTH);
        long whole = size / width * width;
        Tensor rows = words.narrow(0, 0, whole).view(-1, width);
        long count = rows.size(0);
        long most = CHUNK / WIDTH; // together: torch widens what it sums
        Tensor sums = sum(rows.narrow(0, 0, Math.min(most, count)));
        for (long start = most; start < count; start += most) {
            try (TorchScope inner = TorchScope.withoutGraph()) {
                sums.add_(sum(rows.narrow(0, start, Math.min(most, count - start))));
            }
        }
        if (whole < size) {
            sums.narrow(0, 0, size - whole).add_(words.narrow(0, whole, size - whole));
        }
        return sums.mul_(weights(sums)).sum().item_long();
    }

    /** Odd numbers that no small multiples of each other add up to, as those of labels would. */
    private static Tensor weights(Tensor sums) {
        Tensor places = torch.arange(scalar(1), scalar(sums.numel() + 1), sums.options());
        Tensor mixed = places.mul_(scalar(GAMMA));
        mixed.bitwise_xor_(mixed.bitwise_right_shift(scalar(30)));
        return mixed.mul_(scalar(MIX)).bitwise_or_(scalar(1));
    }

    private static Tensor sum(Tensor rows) {
        return rows.sum(new long[] {0}, false, new ScalarTypeOptional(ScalarType.Long));
    }

    private static Scalar scalar(long value) {
        return new Scalar(value);
    }
}
