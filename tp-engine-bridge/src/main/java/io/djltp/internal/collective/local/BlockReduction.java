package io.djltp.internal.collective.local;

import io.djltp.collective.ReduceOp;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;

/**
 * The arithmetic of reductions in host memory: reduces a range of several tensors, block by block,
 * so that a block stays in the cache from the first read to the last write.
 */
public final class BlockReduction implements AutoCloseable {

    /** Elements of a block of each tensor together: 1 MiB of float32, as large as many a cache. */
    private static final long BLOCK = 1 << 18;

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
        long size = Math.max(1, BLOCK / from.length);
        Blocks[] read = blocks(from, start, length, size);
        Blocks[] written = from == to && start == at ? read : blocks(to, at, length, size);
        Tensor accumulator = direct ? null : accumulator(from[0].scalar_type().intern());
        try {
            for (int i = 0; i < read[0].size(); i++) {
                if (accumulator == null) {
                    reduceBlock(read, i, op, written[0].get(i));
                } else {
                    try (Tensor sum = accumulator.narrow(0, 0, read[0].get(i).numel())) {
                        reduceBlock(read, i, op, sum);
                        written[0].get(i).copy_(sum);
                    }
                }
                for (int k = 1; k < written.length; k++) {
                    written[k].get(i).copy_(written[0].get(i));
                }
            }
        } finally {
            List.of(read).forEach(Blocks::close);
            List.of(written).forEach(Blocks::close);
        }
    }

    private static void reduceBlock(Blocks[] from, int number, ReduceOp op, Tensor sum) {
        Tensor first = from[0].get(number);
        // two numbers of 16 bits would be added as such, and rounded
        boolean copied = from.length == 1 || sum.element_size() != first.element_size();
        if (copied) {
            sum.copy_(first);
        }
        for (int i = 1; i < from.length; i++) {
            combine(sum, i == 1 && !copied ? first : sum, from[i].get(number), op);
        }
    }

    private static Blocks[] blocks(Tensor[] tensors, long start, long length, long size) {
        return Arrays.stream(tensors)
                .map(each -> new Blocks(each, start, length, size))
                .toArray(Blocks[]::new);
    }

    /**
     * The blocks of a range: the range itself, or one native object of all of them. A {@code
     * Tensor} that frees itself, for each block, takes as long as its arithmetic, and the ranks
     * wait for each other there.
     */
    private static final class Blocks implements AutoCloseable {

        private final Tensor range;
        private final @Nullable TensorVector blocks; // null: it is one block

        Blocks(Tensor tensor, long start, long length, long size) {
            range = tensor.narrow(0, start, length);
            blocks = length <= size ? null : range.split(size);
        }

        int size() {
            return blocks == null ? 1 : (int) blocks.size();
        }

        Tensor get(int number) {
            return blocks == null ? range : blocks.get(number);
        }

        @Override
        public void close() {
            if (blocks != null) {
                blocks.close();
            }
            range.close();
        }
    }

    /**
     * Returns whether a place can hold the sums on their way: it needs their type, and must be none
     * that is still to be read. The ranges of the first two tensors are read before it is written
     * to.
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
            if (!apart && (i > 1 || source != target)) {
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
