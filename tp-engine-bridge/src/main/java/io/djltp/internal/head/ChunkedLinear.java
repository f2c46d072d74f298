package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.head.ChunkMemory.Place;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.UnitRows;

import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

/**
 * The weight and the bias of a linear layer whose output is computed a chunk of its units at a
 * time: of all units, or of some that are given, and with the rows of the weight as they are, or
 * each divided by its length.
 *
 * <p>A chunk is a range of positions: of the classes, or of the list of those that are given. What
 * is a copy is made in the memory of the thread that computes it.
 */
final class ChunkedLinear {

    private final Tensor weight; // [classes, features], no part of a graph
    private final @Nullable Tensor bias;
    private final @Nullable Tensor sample; // the columns to which the layer is reduced, int64
    private final boolean unit;
    private final boolean wide; // whether the weight is in 32 bits
    private final @Nullable StochasticRounding rounding; // of updated rows

    /**
     * Creates the layer.
     *
     * @param weight the weight, [classes, features]
     * @param bias the bias, [classes], or {@code null}
     * @param sample the columns to which the layer is reduced, ascending, int64, or {@code null}
     * @param unit whether rows of the weight are divided by their lengths
     */
    ChunkedLinear(NDArray weight, @Nullable NDArray bias, @Nullable Tensor sample, boolean unit) {
        this(weight, bias, sample, unit, null);
    }

    /** The same, whose updated rows are rounded to 16 bits as is given. */
    ChunkedLinear(
            NDArray weight,
            @Nullable NDArray bias,
            @Nullable Tensor sample,
            boolean unit,
            @Nullable StochasticRounding rounding) {
        this.rounding = rounding;
        this.weight = TensorView.of(weight).tensor().detach();
        Tensor all = bias == null ? null : TensorView.of(bias).tensor().detach();
        this.bias = all == null || sample == null ? all : all.index_select(0, sample);
        this.sample = sample;
        this.unit = unit;
        wide = isWide(this.weight);
    }

    private ChunkedLinear(ChunkedLinear linear, Tensor bias) {
        weight = linear.weight;
        this.bias = bias;
        sample = linear.sample;
        unit = linear.unit;
        wide = linear.wide;
        rounding = linear.rounding;
    }

    /** Returns the same with numbers that are added to the logits of the classes, [classes]. */
    ChunkedLinear withAdded(Tensor numbers) {
        return new ChunkedLinear(this, bias == null ? numbers : numbers.add(bias));
    }

    private static boolean isWide(Tensor tensor) {
        return tensor.scalar_type().intern() == ScalarType.Float;
    }

    /** Returns the bias of the classes that are computed, or {@code null}. */
    @Nullable Tensor bias() {
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
    @Nullable Tensor columns(ChunkPlan plan, int index) {
        return sample == null ? null : plan.part(sample, index);
    }

    /** Returns a chunk's rows to compute with: those of the weight, or a copy in 32 bits. */
    Tensor weight(ChunkMemory memory, int index) {
        Tensor stored = stored(memory, index, Place.USED_WEIGHT);
        if (!unit) {
            return stored;
        }
        Tensor place = memory.work(Place.USED_WEIGHT, stored.size(0));
        return torch.mul_out(place, stored, UnitRows.inverseLengths(stored).unsqueeze(1));
    }

    /** Returns a chunk's rows to update, where {@link #weight} has returned some to use. */
    Tensor updated(ChunkMemory memory, int index, Tensor used) {
        return unit ? stored(memory, index, Place.UPDATED_WEIGHT) : used;
    }

    private Tensor stored(ChunkMemory memory, int index, Place copy) {
        Tensor columns = columns(memory.plan(), index);
        Tensor rows = columns == null ? memory.plan().part(weight, index) : null;
        if (rows != null && wide) {
            return rows;
        }
        Tensor place = memory.work(copy, memory.plan().length(index));
        return columns != null && wide
                ? torch.index_select_out(place, weight, 0, columns)
                : place.copy_(columns == null ? rows : weight.index_select(0, columns));
    }

    /** Writes the updated rows of a chunk back, if they are a copy, which is used up. */
    void setWeight(ChunkPlan plan, int index, Tensor rows) {
        if (rounding != null) {
            rounding.apply(plan.start(index), rows);
        }
        Tensor columns = columns(plan, index);
        if (columns != null) {
            weight.index_copy_(0, columns, rows.to(weight.scalar_type()));
        } else if (!wide) {
            plan.part(weight, index).copy_(rows);
        }
    }

    /**
     * Returns memory for the gradient of the bias of the classes that are computed with, in 32
     * bits: the gradient of the bias itself, if it has this size and type.
     */
    Tensor biasGradient(ChunkMemory memory, Tensor target) {
        if (sample == null && isWide(target)) {
            return target;
        }
        Tensor used = sample == null ? target : sample;
        return torch.empty(used.shape(), memory.options(), new MemoryFormatOptional());
    }

    /** Writes the gradient of the bias into that of all classes, where the others have none. */
    void setBiasGradient(Tensor target, Tensor gradient) {
        if (gradient != target) {
            Tensor stored = gradient.to(target.scalar_type());
            if (sample == null) {
                target.copy_(stored);
            } else {
                target.zero_().index_copy_(0, sample, stored);
            }
        }
    }
}
