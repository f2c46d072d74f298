package io.djltp.collective.tcp;

import io.djltp.torch.TensorBuffers;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.nio.ByteBuffer;

/**
 * Where the other ranks' summands go before they are added: memory that is kept from call to call,
 * and grows to what the largest of them needs.
 */
final class Staging implements AutoCloseable {

    private static final int ALIGNMENT = 64;

    private Tensor bytes;
    private Tensor[] slots = {};

    /**
     * Returns the tensors of all ranks, in their order: this rank's summand, and a slot for each
     * other.
     *
     * @param summand this rank's tensor, flat
     * @param length the number of elements of each slot
     * @param rank this rank
     * @param size the number of ranks
     * @return the tensors
     */
    Tensor[] slots(Tensor summand, long length, int rank, int size) {
        long slot = (length * summand.element_size() + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        reserve(slot * (size - 1));
        slots = new Tensor[size];
        int next = 0;
        for (int i = 0; i < size; i++) {
            if (i == rank) {
                slots[i] = summand;
            } else {
                slots[i] =
                        bytes.narrow(0, slot * next++, length * summand.element_size())
                                .view(summand.scalar_type());
            }
        }
        return slots;
    }

    /** Returns the memory of a rank's slot. */
    ByteBuffer[] buffers(int rank, long length) {
        return TensorBuffers.of(slots[rank], 0, length);
    }

    private void reserve(long size) {
        if (bytes == null || bytes.numel() < size) {
            close();
            bytes =
                    torch.empty(new long[] {size}, new TensorOptions(ScalarType.Byte), null)
                            .retainReference(); // outlives the scope of the operation
        }
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        if (bytes != null) {
            bytes.close();
            bytes = null;
        }
        slots = new Tensor[0];
    }
}
