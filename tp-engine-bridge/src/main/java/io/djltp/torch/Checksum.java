package io.djltp.torch;

import ai.djl.ndarray.NDArray;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** A checksum of an array's bits, computed on its device. */
@SuppressWarnings("try") // a scope is used by being open
public final class Checksum {

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
            Tensor tensor = TensorView.of(array).tensor().detach().contiguous().view(-1);
            ScalarType word = tensor.element_size() % 4 == 0 ? ScalarType.Int : ScalarType.Short;
            if (tensor.element_size() % 2 != 0) {
                word = ScalarType.Byte;
            }
            Tensor words = tensor.view(word);
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
    }

    private static org.bytedeco.pytorch.ScalarTypeOptional wide() {
        return new org.bytedeco.pytorch.ScalarTypeOptional(ScalarType.Long);
    }

    private static org.bytedeco.pytorch.Scalar scalar(long value) {
        return new org.bytedeco.pytorch.Scalar(value);
    }
}
