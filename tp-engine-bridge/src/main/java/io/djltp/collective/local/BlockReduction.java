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
        if (length == 0 || from.length == 1 && from[0] == to[0]) {
            return;
        }
        boolean direct = takesSums(from, start, length, to[0], at);
        Tensor accumulator = direct ? to[0] : accumulator(from[0].scalar_type().intern());
        for (long done = 0; done < length; done += BLOCK) {
            long size = Math.min(BLOCK, length - done);
            try (Tensor sum = accumulator.narrow(0, direct ? at + done : 0, size)) {
                reduceBlock(from, start + done, size, op, sum);
                for (int i = direct ? 1 : 0; i < to.length; i++) {
                    try (Tensor block = to[i].narrow(0, at + done, size)) {
                        block.copy_(sum);
                    }
                }
            }
        }
    }

    private static void reduceBlock(Tensor[] from, long at, long size, ReduceOp op, Tensor sum) {
        try (Tensor first = from[0].narrow(0, at, size)) {
            // two numbers of 16 bits would be added as such, and rounded
            boolean copied = from.length == 1 || sum.element_size() != first.element_size();
            if (copied) {
                sum.copy_(first);
            }
            for (int i = 1; i < from.length; i++) {
                try (Tensor block = from[i].narrow(0, at, size)) {
                    combine(sum, i == 1 && !copied ? first : sum, block, op);
                }
            }
        }
    }

    /**
     * Returns whether a place can hold the sums on their way: it needs their type, and must be none
     * that is still to be read. The range of the first tensor is read before it is written to.
     */
    private static boolean takesSums(Tensor[] from, long start, long length, Tensor to, long at) {
        if (accumulates(from[0].scalar_type().intern()) != to.scalar_type().intern()) {
            return false;
        }
        long width = to.element_size();
        long target = to.data_ptr().address() + at * width;
        for (int i = 0; i < from.length; i++) {
            long source = from[i].data_ptr().address() + start * width;
            boolean apart = Math.abs(source - target) >= length * width;
            if (!apart && (i > 0 || source != target)) {
                return false;
            }
        }
        return true;
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

    private static void combine(Tensor out, Tensor sum, Tensor block, ReduceOp op) {
        if (op == ReduceOp.SUM) {
            torch.add_out(out, sum, block);
        } else if (op == ReduceOp.MAX) {
            torch.maximum_out(out, sum, block);
        } else {
            torch.minimum_out(out, sum, block);
        }
    }

    /** Returns the type of sums: those of 16 bits are rounded once, when they are complete. */
    private static ScalarType accumulates(ScalarType type) {
        boolean half = type == ScalarType.Half || type == ScalarType.BFloat16;
        return half ? ScalarType.Float : type;
    }

    private Tensor accumulator(ScalarType type) {
        return accumulators.computeIfAbsent(
                accumulates(type),
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
