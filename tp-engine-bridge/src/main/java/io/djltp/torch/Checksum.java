package io.djltp.torch;

import ai.djl.ndarray.NDArray;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** A checksum of an array's bits, computed on its device. */
@SuppressWarnings("try") // a scope is used by being open
public final class Checksum {

    private static final long CHUNK = 1 << 20;

    private Checksum() {}

    /**
     * Returns a checksum: equal for equal bits, and different if any one element differs.
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
        // rows that are summed with a weight of their own: an exchange of two is seen too
        long width = Math.min(size, 1024);
        long whole = size / width * width;
        Tensor rows = words.narrow(0, 0, whole).view(-1, width);
        Tensor sums = rows.sum(new long[] {0}, false, wide());
        Tensor weights = torch.arange(scalar(1), scalar(width + 1), sums.options());
        long sum = sums.mul(weights).sum().item_long();
        Tensor rest = words.narrow(0, whole, size - whole);
        return 31 * sum + rest.sum(wide()).item_long();
    }

    private static org.bytedeco.pytorch.ScalarTypeOptional wide() {
        return new org.bytedeco.pytorch.ScalarTypeOptional(ScalarType.Long);
    }

    private static Scalar scalar(long value) {
        return new Scalar(value);
    }
}
