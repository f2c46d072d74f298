package io.djltp.collective.local;

import io.djltp.collective.ReduceOp;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.EnumMap;
import java.util.Map;

/**
 * The arithmetic of reductions in host memory: reduces a range of several tensors, block by block,
 * so that a block stays in the cache from the first read to the last write.
 */
public final class BlockReduction implements AutoCloseable {

    /** Elements of a block: with 4-byte elements a quarter of a 1 MiB cache. */
    private static final long BLOCK = 1 << 16;

    private final Map<ScalarType, Tensor> accumulators = new EnumMap<>(ScalarType.class);

    /** Creates a reduction without memory; it takes some when it is needed. */
    public BlockReduction() {}

    /**
     * Reduces a range in the order of the tensors and writes the result to one or more places. A
     * place may be part of a tensor that is read.
     *
     * @param from flat tensors of one type
     * @param start the first element of the range
     * @param length the number of elements of the range
     * @param op the reduction
     * @param to flat tensors that get the result
     * @param at where in {@code to} the result starts
     */
    public void reduce(Tensor[] from, long start, long length, ReduceOp op, Tensor[] to, long at) {
        if (from.length == 1 && from[0] == to[0]) {
            return;
        }
        Tensor accumulator = accumulator(from[0].scalar_type().intern());
        for (long done = 0; done < length; done += BLOCK) {
            long size = Math.min(BLOCK, length - done);
            try (Tensor sum = accumulator.narrow(0, 0, size)) {
                for (int i = 0; i < from.length; i++) {
                    try (Tensor block = from[i].narrow(0, start + done, size)) {
                        accumulate(sum, block, i == 0, op);
                    }
                }
                for (Tensor target : to) {
                    try (Tensor block = target.narrow(0, at + done, size)) {
                        block.copy_(sum);
                    }
                }
            }
        }
    }

    /**
     * Copies a tensor, unless the two are the same memory.
     *
     * @param from the tensor
     * @param to where it goes, of the same size
     */
    public static void copy(Tensor from, Tensor to) {
        if (from.numel() > 0 && from.data_ptr().address() != to.data_ptr().address()) {
            to.copy_(from);
        }
    }

    private static void accumulate(Tensor sum, Tensor block, boolean first, ReduceOp op) {
        if (first) {
            sum.copy_(block);
        } else if (op == ReduceOp.SUM) {
            sum.add_(block);
        } else if (op == ReduceOp.MAX) {
            torch.maximum_out(sum, sum, block);
        } else {
            torch.minimum_out(sum, sum, block);
        }
    }

    private Tensor accumulator(ScalarType type) {
        boolean half = type == ScalarType.Half || type == ScalarType.BFloat16;
        return accumulators.computeIfAbsent(
                half ? ScalarType.Float : type,
                t -> {
                    try (Scalar zero = new Scalar(0)) {
                        Tensor block =
                                torch.full(
                                        new long[] {BLOCK},
                                        zero,
                                        new org.bytedeco.pytorch.TensorOptions(t));
                        // outlives the scope of the operation that needs it first
                        return block.retainReference();
                    }
                });
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        accumulators.values().forEach(Tensor::close);
        accumulators.clear();
    }
}
