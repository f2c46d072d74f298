package io.djltp.internal.head;

import io.djltp.internal.head.ChunkMemory.Place;
import io.djltp.internal.torch.HostReads;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.jspecify.annotations.Nullable;

/**
 * What a {@link ChunkWorker} makes of the logits of a chunk with a {@link OneVsAll} loss: their
 * losses, which it adds to the sums of the rows, and their gradient in the same place, but for the
 * factor of all.
 *
 * <p>The binary cross entropy of a chunk is quick without weights: with the exponentials e as
 * powers of two, {@code e / (1 + e)} is the gradient, and the logarithm of {@code 1 + e} is taken
 * of the products of eight of them. Digits of small e are there: what is computed of {@code (1 +
 * a)(1 + b)} is {@code a + b + a b}, which has 1 nowhere.
 */
final class SlopeChunks {

    private static final int LEVELS = 3; // of products of two

    private final OneVsAll.Kind kind;
    private final boolean gpu;
    private final HeadPass pass;
    private final ChunkMemory memory;
    private final Scalar toLogits;
    private final Tensor one;
    private final Tensor logitsOfLabels; // all of the rank, as their parts
    private final Tensor partsOfLabels;
    private final ScalarTypeOptional same = new ScalarTypeOptional();
    private @Nullable Products products; // of chunks that are not kept

    /** Prepares a run over chunks, in its scope. */
    SlopeChunks(HeadPass pass, ChunkMemory memory) {
        this.pass = pass;
        this.memory = memory;
        kind = pass.oneVsAll().kind();
        gpu = memory.options().device().is_cuda();
        toLogits = new Scalar(1 / pass.unit());
        one = torch.ones(new long[0], memory.options());
        logitsOfLabels = pass.ofLabels(Place.LABEL_LOGITS);
        partsOfLabels = pass.ofLabels(Place.LABEL_PARTS);
        if (memory.plan().count() > 0 && isQuick(memory.plan().length(0))) {
            products = new Products(memory.spareLogits(0), memory.scratch(0));
        }
    }

    private boolean isQuick(long classes) {
        return !gpu // where it would take more operations
                && kind == OneVsAll.Kind.BINARY_CROSS_ENTROPY
                && pass.classWeights() == null
                && classes % (1 << LEVELS) == 0;
    }

    /**
     * Computes losses and gradient of a chunk, if there is a quick way.
     *
     * @param logits the logits times the unit of the pass, [classes of the chunk, rows]
     * @return whether it was possible; if not, the logits are used up
     */
    boolean areQuick(int index, Tensor logits) {
        if (!isQuick(logits.size(0))) {
            return false;
        }
        logits.exp2_();
        Tensor scratch = memory.scratch(index);
        Products own = products; // of the last chunk it may be too long
        if (own == null || memory.isKept(index) || index == memory.plan().count() - 1) {
            own = new Products(logits, scratch);
        }
        Tensor sum =
                torch.sum_out(memory.column(Place.FACTOR), own.log(), new long[] {0}, false, same);
        if (!Double.isFinite(HostReads.known(sum.sum()))) { // of exponentials, or of their products
            return false;
        }
        memory.column(Place.SUMS).add_(sum);
        torch.add_out(scratch, one, logits);
        logits.div_(scratch);
        return true;
    }

    /**
     * Computes losses and gradient of a chunk.
     *
     * @param logits the logits times the unit of the pass, [classes of the chunk, rows]
     * @param withLosses whether the losses are wanted
     * @param updates whether the weight is updated before those of all chunks are known
     * @throws ArithmeticException if the weight is updated, and the losses are not finite
     */
    void compute(int index, Tensor logits, boolean withLosses, boolean updates) {
        if (pass.unit() != 1) {
            logits.mul_(toLogits);
        }
        Tensor ofClasses = pass.classWeights();
        Tensor weights =
                ofClasses == null ? null : memory.plan().part(ofClasses, index).unsqueeze(1);
        if (withLosses) {
            Tensor losses = kind.losses(logits);
            losses = weights == null ? losses : losses.mul_(weights);
            Tensor sum =
                    torch.sum_out(memory.column(Place.FACTOR), losses, new long[] {0}, false, same);
            if (updates && !Double.isFinite(HostReads.number(sum.sum()))) {
                throw new ArithmeticException(
                        "The logits hold NaN or infinite values on rank %d; with optUpdateInLoss the weights of some classes were updated"
                                .formatted(pass.labels.shard.rank()));
            }
            memory.column(Place.SUMS).add_(sum);
        }
        kind.toSlopes(logits);
        if (weights != null) {
            logits.mul_(weights);
        }
    }

    /** Puts the gradient of the labels of a chunk into its place. */
    void setLabels(ClassLabels.OfChunk labels, Tensor gradient) {
        Tensor slopes = kind.toSlopes(labels.part(logitsOfLabels).neg());
        slopes.mul_(labels.part(partsOfLabels));
        gradient.view(-1).index_copy_(0, labels.inLogits(), slopes);
    }

    /** Products of eight numbers of a chunk, whose views are made once. */
    private static final class Products {

        private final Tensor[] left = new Tensor[LEVELS];
        private final Tensor[] right = new Tensor[LEVELS];
        private final Tensor first; // what the first products go into

        Products(Tensor numbers, Tensor scratch) {
            long length = numbers.size(0);
            for (int i = 0; i < LEVELS; i++) {
                length /= 2;
                Tensor from = i == 0 ? numbers : scratch;
                left[i] = from.narrow(0, 0, length);
                right[i] = from.narrow(0, length, length);
            }
            first = scratch.narrow(0, 0, numbers.size(0) / 2);
        }

        /** Returns the logarithms of products of one and the numbers. */
        Tensor log() {
            torch.addcmul_out(first, left[0], left[0], right[0]).add_(right[0]);
            for (int i = 1; i < LEVELS; i++) {
                left[i].addcmul_(left[i], right[i]).add_(right[i]);
            }
            return left[LEVELS - 1].log1p_();
        }
    }
}
