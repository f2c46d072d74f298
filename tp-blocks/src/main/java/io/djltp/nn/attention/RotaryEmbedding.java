package io.djltp.nn.attention;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.Errors;
import io.djltp.internal.torch.TorchOperations;

import org.jspecify.annotations.Nullable;

import java.util.Arrays;

/**
 * Rotary positions: pair i of the features of a query or key at position t is rotated by the angle
 * t base^(-2i/r), where r features of a head are rotated and the others stay. The product of a
 * query and a key then depends on the distance of their positions only.
 *
 * <p>Which two features are a pair is a convention of the weights: i and i + r/2 (Llama, GPT-NeoX,
 * the default), or 2i and 2i + 1 (GPT-J, and the paper).
 *
 * <p>Su et al., 2021, <a href="https://arxiv.org/abs/2104.09864">arXiv:2104.09864</a>.
 */
public final class RotaryEmbedding {

    private final double base;
    private final int dim; // or 0: all features of a head
    private final boolean interleaved;
    private final @Nullable RotaryScaling scaling;
    private volatile @Nullable Angles known; // of the longest input so far, of any rank

    /** Cosines and sines, one row for each position. */
    private record Angles(int positions, int pairs, float[] cosines, float[] sines) {}

    private RotaryEmbedding(Builder builder) {
        base = builder.base;
        dim = builder.dim;
        interleaved = builder.interleaved;
        scaling = builder.scaling;
    }

    /**
     * Checks that the features of a head can be rotated.
     *
     * @param headDim the features of a head
     * @throws IllegalArgumentException if they are fewer than are to be rotated, or odd, or the
     *     scaling is one of other features
     */
    public void check(long headDim) {
        Errors.check(
                dim <= headDim,
                "Rotary positions of %s features do not fit heads of %s: give optDim at most that",
                dim,
                headDim);
        Errors.check(
                dim > 0 || headDim % 2 == 0,
                "Rotary positions turn pairs of features, and a head has %s: give it an even"
                        + " number, or turn fewer by optDim",
                headDim);
        if (scaling != null) {
            scaling.check(dim > 0 ? dim : headDim);
        }
    }

    /**
     * Rotates queries or keys.
     *
     * @param heads the queries or keys, [B, T, H, d]
     * @return the same, rotated by their positions 0 to T - 1
     */
    public NDArray apply(NDArray heads) {
        return apply(heads, 0);
    }

    /**
     * Rotates queries or keys that follow others.
     *
     * @param heads the queries or keys, [B, T, H, d]
     * @param start the number of those before them
     * @return the same, rotated by their positions start to start + T - 1
     */
    public NDArray apply(NDArray heads, int start) {
        Errors.check(start >= 0, "Positions begin at 0 or later, not at %s", start);
        Shape shape = heads.getShape();
        int positions = Math.toIntExact(shape.get(1));
        long features = shape.get(3);
        int rotated = dim == 0 ? Math.toIntExact(features) : dim;
        int pairs = rotated / 2;
        Angles angles = angles(Math.addExact(start, positions), pairs);
        NDManager manager = heads.getManager();
        Shape table = new Shape(positions, 1, pairs);
        NDArray cosines = array(manager, angles.cosines(), start, table, heads);
        NDArray sines = array(manager, angles.sines(), start, table, heads);
        NDArray first;
        NDArray second;
        if (interleaved) {
            NDArray whole = rotated == features ? heads : slice(heads, 0, rotated);
            NDArray paired = whole.reshape(shape.get(0), positions, shape.get(2), pairs, 2);
            first = paired.get("..., 0");
            second = paired.get("..., 1");
        } else {
            first = slice(heads, 0, pairs);
            second = slice(heads, pairs, rotated);
        }
        NDArray x = first.mul(cosines).sub(second.mul(sines));
        NDArray y = second.mul(cosines).add(first.mul(sines));
        NDArray turned =
                interleaved
                        ? NDArrays.stack(new NDList(x, y), 4)
                                .reshape(shape.get(0), positions, shape.get(2), rotated)
                        : TorchOperations.concat(new NDList(x, y), 3);
        return rotated == features
                ? turned
                : TorchOperations.concat(new NDList(turned, slice(heads, rotated, features)), 3);
    }

    private static NDArray slice(NDArray heads, long from, long to) {
        return heads.get(new NDIndex("...").addSliceDim(from, to));
    }

    private static NDArray array(
            NDManager manager, float[] values, int start, Shape table, NDArray like) {
        int from = Math.toIntExact(start * table.get(2));
        float[] used = Arrays.copyOfRange(values, from, from + Math.toIntExact(table.size()));
        NDArray array = manager.create(used, table);
        return array.toDevice(like.getDevice(), false).toType(like.getDataType(), false);
    }

    private Angles angles(int positions, int pairs) {
        if (isScaledBy(positions)) { // of no use for another length
            return compute(positions, pairs);
        }
        Angles angles = known;
        if (angles == null || angles.positions() < positions || angles.pairs() != pairs) {
            angles = compute(positions, pairs);
            known = angles;
        }
        return angles;
    }

    private Angles compute(int positions, int pairs) {
        float[] cosines = new float[Math.multiplyExact(positions, pairs)];
        float[] sines = new float[positions * pairs];
        double[] frequencies = frequencies(2 * pairs, positions);
        double length = getAttentionFactor();
        for (int i = 0; i < pairs; i++) {
            for (int t = 0; t < positions; t++) {
                cosines[t * pairs + i] = (float) (length * Math.cos(t * frequencies[i]));
                sines[t * pairs + i] = (float) (length * Math.sin(t * frequencies[i]));
            }
        }
        return new Angles(positions, pairs, cosines, sines);
    }

    private double[] frequencies(int features, long length) {
        if (scaling != null) {
            return scaling.frequencies(base, features, length);
        }
        double[] frequencies = new double[features / 2];
        Arrays.setAll(frequencies, i -> Math.pow(base, -2.0 * i / features));
        return frequencies;
    }

    /**
     * Returns the angle of each pair of features at position 1. At position t it is t times that.
     *
     * @param headDim the features of a head
     * @param length the length of the text, on which the angles of dynamic scaling depend
     * @return the angles, one for each pair that is rotated
     */
    public double[] getFrequencies(int headDim, long length) {
        check(headDim);
        return frequencies(dim == 0 ? headDim : dim, length);
    }

    /**
     * Returns by what rotated queries and keys are multiplied. It is 1 but for scaling of YaRN and
     * LongRoPE.
     *
     * @return the factor of cosines and sines
     */
    public double getAttentionFactor() {
        return scaling == null ? 1 : scaling.length();
    }

    /**
     * Returns whether the angles of all positions of a text depend on its length, as they do with
     * dynamic scaling and LongRoPE beyond the original length. Keys that were rotated for a text
     * within it are then not those of the longer text.
     *
     * @param length the length of the text
     * @return whether the angles depend on it
     */
    public boolean isScaledBy(long length) {
        return scaling != null && scaling.dependsOn(length);
    }

    /**
     * Returns whether the angles of all positions change when a text becomes longer: with dynamic
     * scaling at each length beyond the original one, with LongRoPE once.
     *
     * @param from the length of the shorter text
     * @param to the length of the longer text
     * @return whether its keys must be rotated anew
     */
    public boolean isScaledBetween(long from, long to) {
        return scaling != null && scaling.changes(from, to);
    }

    /**
     * Returns how angles are scaled.
     *
     * @return the scaling, or {@code null} if they are not
     */
    public @Nullable RotaryScaling getScaling() {
        return scaling;
    }

    /**
     * Creates a builder to build a {@code RotaryEmbedding}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link RotaryEmbedding}. */
    public static final class Builder {

        private double base = 10_000;
        private int dim;
        private boolean interleaved;
        private @Nullable RotaryScaling scaling;

        private Builder() {}

        /**
         * Sets the base of the angles. Default: 10,000.
         *
         * @param base a number above 1
         * @return this builder
         */
        public Builder optBase(double base) {
            Errors.check(base > 1, "The base of rotary positions must be above 1, not %s", base);
            this.base = base;
            return this;
        }

        /**
         * Sets how many features of a head are rotated, the first ones. Default: all.
         *
         * @param dim an even number
         * @return this builder
         */
        public Builder optDim(int dim) {
            Errors.check(
                    dim > 0 && dim % 2 == 0,
                    "The number of rotated features must be even and above 0, not %s",
                    dim);
            this.dim = dim;
            return this;
        }

        /**
         * Sets whether features 2i and 2i + 1 are a pair, as in GPT-J. Default: false, i and i +
         * r/2 are, as in Llama.
         *
         * @param interleaved whether pairs are neighbours
         * @return this builder
         */
        public Builder optInterleaved(boolean interleaved) {
            this.interleaved = interleaved;
            return this;
        }

        /**
         * Sets how angles are scaled for longer texts. Default: not.
         *
         * @param scaling the scaling, or {@code null} for none
         * @return this builder
         */
        public Builder optScaling(@Nullable RotaryScaling scaling) {
            this.scaling = scaling;
            return this;
        }

        /**
         * Builds the positions.
         *
         * @return the positions
         */
        public RotaryEmbedding build() {
            return new RotaryEmbedding(this);
        }
    }
}
