package io.djltp.head;

import io.djltp.head.ChunkMemory.Work;
import io.djltp.internal.torch.Brgemm;
import io.djltp.internal.update.UnitRows;

import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * A linear layer whose output is computed a chunk of its units at a time: of all units, or of some
 * that are given, and with the rows of the weight as they are, or each divided by its length.
 *
 * <p>A chunk is a range of positions: of the classes, or of the list of those that are given.
 */
final class ChunkedLinear {

    private final ChunkMemory memory;
    private final Tensor weight;
    private final Tensor bias;
    private final Tensor sample;
    private final boolean unit;
    private final boolean wide; // whether the weight is in 32 bits

    /**
     * Creates the layer.
     *
     * @param memory the memory
     * @param weight the weight, [classes, features], no part of a graph
     * @param bias the bias, [classes], or {@code null}
     * @param sample the columns to which the layer is reduced, ascending, int64, or {@code null}
     * @param unit whether rows of the weight are divided by their lengths
     */
    ChunkedLinear(ChunkMemory memory, Tensor weight, Tensor bias, Tensor sample, boolean unit) {
        this.memory = memory;
        this.weight = weight;
        this.bias = bias == null || sample == null ? bias : bias.index_select(0, sample);
        this.sample = sample;
        this.unit = unit;
        wide = weight.scalar_type().intern() == ScalarType.Float;
    }

    private ChunkedLinear(ChunkedLinear other, ChunkMemory memory) {
        this.memory = memory;
        weight = other.weight;
        bias = other.bias;
        sample = other.sample;
        unit = other.unit;
        wide = other.wide;
    }

    /** Returns the same layer, computed in other memory. */
    ChunkedLinear withMemory(ChunkMemory other) {
        return new ChunkedLinear(this, other);
    }

    /** Returns the bias of the classes that are computed, or {@code null}. */
    Tensor bias() {
        return bias;
    }

    boolean isUnit() {
        return unit;
    }

    /** Returns rows of the weight at some positions, in float32 and not divided by their length. */
    Tensor rows(Tensor positions) {
        Tensor places = sample == null ? positions : sample.index_select(0, positions);
        return weight.index_select(0, places).to(ScalarType.Float);
    }

    /** Returns the columns of a chunk, or {@code null} if they are a range of all. */
    Tensor columns(int index) {
        return sample == null ? null : part(sample, index);
    }

    /** Returns a chunk's rows to compute with: those of the weight, or a copy in 32 bits. */
    Tensor weight(int index) {
        Tensor stored = stored(index, Work.USED_WEIGHT);
        if (!unit) {
            return stored;
        }
        Tensor place = memory.work(Work.USED_WEIGHT, stored.size(0));
        return torch.mul_out(place, stored, UnitRows.inverseLengths(stored).unsqueeze(1));
    }

    /** Returns a chunk's rows to update, where {@link #weight(int)} has returned some to use. */
    Tensor updated(int index, Tensor used) {
        return unit ? stored(index, Work.UPDATED_WEIGHT) : used;
    }

    private Tensor stored(int index, Work copy) {
        Tensor columns = columns(index);
        if (columns == null && wide) {
            return part(weight, index);
        }
        Tensor place = memory.work(copy, memory.plan().length(index));
        if (columns == null) {
            return place.copy_(part(weight, index));
        }
        return wide
                ? torch.index_select_out(place, weight, 0, columns)
                : place.copy_(weight.index_select(0, columns));
    }

    /** Writes the updated rows of a chunk back, if they are a copy. */
    void setWeight(int index, Tensor rows) {
        Tensor columns = columns(index);
        if (columns != null) {
            weight.index_copy_(0, columns, rows.to(weight.scalar_type()));
        } else if (!wide) {
            part(weight, index).copy_(rows);
        }
    }

    /**
     * Computes the output of a chunk, the rows first.
     *
     * @param index the chunk
     * @param place where it goes, [rows, classes of the chunk]
     * @param features the features, [rows, features]
     * @param rowsOfWeight the rows of the weight that belong to the chunk
     */
    void rowMajor(int index, Tensor place, Tensor features, Tensor rowsOfWeight) {
        torch.mm_out(place, features, rowsOfWeight.t());
        if (bias != null) {
            place.add_(part(bias, index));
        }
    }

    /**
     * Computes the output of a chunk, the classes first.
     *
     * @param index the chunk
     * @param place where it goes, [classes of the chunk, rows]
     * @param features the features, [features, rows]
     * @param rows the number of the rows to which the bias is added, from the first
     * @param rowsOfWeight the rows of the weight that belong to the chunk
     */
    void classMajor(int index, Tensor place, Tensor features, long rows, Tensor rowsOfWeight) {
        Brgemm.multiply(rowsOfWeight, features, place);
        if (bias != null) {
            place.narrow(1, 0, rows).add_(part(bias, index).unsqueeze(1));
        }
    }

    /**
     * Returns memory for the gradient of the bias of the classes that are computed with, in 32
     * bits: the gradient of the bias itself, if it has this size and type.
     */
    Tensor biasGradient(Tensor target) {
        if (target == null || sample == null && target.scalar_type().intern() == ScalarType.Float) {
            return target;
        }
        Tensor used = sample == null ? target : sample;
        return torch.empty(used.shape(), memory.options(), new MemoryFormatOptional());
    }

    /** Writes the gradient of the bias into that of all classes, where the others have none. */
    void setBiasGradient(Tensor target, Tensor gradient) {
        if (gradient == target) {
            return;
        }
        if (sample == null) {
            target.copy_(gradient);
        } else {
            target.zero_().index_copy_(0, sample, gradient.to(target.scalar_type()));
        }
    }

    /** Returns the part of a parameter, or of its gradient, that belongs to a chunk. */
    Tensor part(Tensor parameter, int index) {
        return parameter.narrow(0, memory.plan().start(index), memory.plan().length(index));
    }
}
