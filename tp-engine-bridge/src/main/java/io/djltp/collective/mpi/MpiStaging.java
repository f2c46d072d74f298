package io.djltp.collective.mpi;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * Memory for what comes from other ranks before it is reduced or copied: kept from call to call, it
 * grows to what the largest of them needs.
 */
final class MpiStaging implements AutoCloseable {

    private Tensor bytes;

    /**
     * Returns room for elements. What was there before is lost.
     *
     * @param like a tensor of the type that is wanted
     * @param length the number of elements
     * @return a flat tensor, valid until the next call
     */
    Tensor take(Tensor like, long length) {
        long needed = length * like.element_size();
        if (bytes == null || bytes.numel() < needed) {
            close();
            bytes =
                    torch.empty(new long[] {needed}, new TensorOptions(ScalarType.Byte), null)
                            .retainReference(); // outlives the scope of the operation
        }
        return bytes.narrow(0, 0, needed).view(like.scalar_type());
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        if (bytes != null) {
            bytes.close();
            bytes = null;
        }
    }
}
