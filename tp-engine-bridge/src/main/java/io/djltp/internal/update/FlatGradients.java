package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.IntFunction;
import java.util.function.IntPredicate;

/**
 * The gradients of several weights one after another in memory, so that they are summed over ranks
 * by one operation. The memory is made once and serves all steps.
 *
 * <p>Where ranks share the update out, the first rank's parts of all weights come first, then those
 * of the second, and so on: a reduce-scatter leaves each rank the sums of its parts, and the
 * updated values go the way back.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class FlatGradients implements AutoCloseable {

    /** Elements: as many as the widest vector register has, of the smallest type of a state. */
    private static final long UNIT = 16;

    private final Tensor flat; // [elements of all weights]
    private final Tensor own; // of the flat tensor: this rank's parts
    private final List<List<ShardRange>> parts; // by weight, of each rank
    private final List<List<Tensor>> pieces = new ArrayList<>(); // of the flat tensor, as the parts
    private final List<Tensor> views = new ArrayList<>(); // of this rank's pieces
    private final @Nullable TensorVector[] weights; // as the parts, from step to step
    private final long[] memory; // where each was
    private final long[] shares; // elements of each rank
    private final int rank;

    /**
     * Makes the memory.
     *
     * @param weights the weights, of one type and on one device
     * @param ranks how many ranks share the weights out, or 1 if each has all of them
     * @param rank which of them this is
     */
    public FlatGradients(List<NDArray> weights, int ranks, int rank) {
        this(weights, ranks, rank, false);
    }

    private FlatGradients(List<NDArray> weights, int ranks, int rank, boolean over) {
        this.rank = rank;
        this.weights = new TensorVector[weights.size()];
        memory = new long[weights.size()];
        parts = weights.stream().map(each -> ranges(each, ranks)).toList();
        shares = new long[ranks];
        parts.forEach(each -> Arrays.setAll(shares, i -> shares[i] + each.get(i).length()));
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor first = TensorView.of(weights.get(0)).tensor();
            flat =
                    over
                            ? first.detach().view(-1).retainReference()
                            : WeightUpdate.zeros(first.options(), Arrays.stream(shares).sum());
            weights.forEach(each -> pieces.add(new ArrayList<>()));
            long start = 0;
            for (int i = 0; i < ranks; i++) {
                for (int k = 0; k < weights.size(); k++) {
                    long count = parts.get(k).get(i).length();
                    pieces.get(k).add(flat.narrow(0, start, count).retainReference());
                    start += count;
                }
            }
            start = Arrays.stream(shares, 0, rank).sum();
            own = flat.narrow(0, start, shares[rank]).retainReference();
            for (int k = 0; k < weights.size(); k++) {
                NDArray weight = weights.get(k);
                Tensor piece = pieces.get(k).get(rank);
                Tensor view = ranks == 1 ? piece.view(weight.getShape().getShape()) : piece;
                views.add(view.retainReference());
            }
        }
    }

    /**
     * Returns the same of one array where it is.
     *
     * @param array the array, contiguous
     * @param ranks how many ranks share it out, or 1
     * @param rank which of them this is
     * @return its memory
     */
    public static FlatGradients over(NDArray array, int ranks, int rank) {
        return new FlatGradients(List.of(array), ranks, rank, true);
    }

    /**
     * Cuts the elements of a weight over the ranks that share its update out. How an operation
     * rounds an element depends on whether it lies in a vector register or in what is left at the
     * end: at these borders it is as in the update of the whole.
     *
     * @param elements the number of elements
     * @param ranks the number of ranks
     * @return the ranges, one after another, some empty if there are few elements
     */
    public static Cut cut(long elements, int ranks) {
        long units = (elements + UNIT - 1) / UNIT;
        long[] lengths = new long[ranks];
        for (int i = 0; i < ranks; i++) {
            ShardRange range = ShardRange.balanced(units, i, ranks);
            lengths[i] =
                    Math.min(elements, range.end() * UNIT)
                            - Math.min(elements, range.start() * UNIT);
        }
        return Cut.ofLengths(lengths);
    }

    private static List<ShardRange> ranges(NDArray weight, int ranks) {
        Cut cut = cut(weight.size(), ranks);
        List<ShardRange> ranges = new ArrayList<>();
        for (int i = 0; i < ranks; i++) {
            ranges.add(cut.getRange(i));
        }
        return ranges;
    }

    /**
     * Copies gradients to their places.
     *
     * @param gradients those of all weights, in their shapes, or {@code null} for one that is zero
     */
    public void set(List<@Nullable TensorView> gradients) {
        for (int k = 0; k < gradients.size(); k++) {
            if (gradients.get(k) == null) {
                pieces.get(k).forEach(Tensor::zero_);
            }
        }
        copy(k -> gradients.get(k) == null ? null : parts(k, gradients.get(k)), i -> true, true);
    }

    /**
     * Copies this rank's parts of weights to their places.
     *
     * @param weights all weights
     */
    public void setOwn(List<NDArray> weights) {
        copy(k -> kept(k, weights.get(k)), i -> i == rank, true);
    }

    /**
     * Copies what is in their places into gradients.
     *
     * @param gradients those of all weights, in their shapes
     */
    public void copyTo(List<NDArray> gradients) {
        copy(k -> parts(k, TensorView.of(gradients.get(k))), i -> true, false);
    }

    /**
     * Copies other ranks' parts of weights into them.
     *
     * @param weights all weights, contiguous
     */
    public void copyOthersTo(List<NDArray> weights) {
        copy(k -> kept(k, weights.get(k)), i -> i != rank, false);
    }

    /** Returns an array as it is laid out here: as it is, or cut into the parts of the ranks. */
    private TensorVector parts(int place, TensorView array) {
        if (shares.length == 1) {
            return new TensorVector(array.tensor());
        }
        long[] lengths = parts.get(place).stream().mapToLong(ShardRange::length).toArray();
        return array.tensor().reshape(-1).split_with_sizes(lengths, 0);
    }

    /** Returns the same of a weight, which is cut again only if it has moved. */
    private TensorVector kept(int place, NDArray weight) {
        TensorView view = TensorView.of(weight);
        TensorVector before = weights[place];
        if (before == null || memory[place] != view.address()) {
            if (before != null) {
                before.close();
            }
            before = parts(place, view).retainReference();
            weights[place] = before;
            memory[place] = view.address();
        }
        return before;
    }

    private void copy(IntFunction<@Nullable TensorVector> arrays, IntPredicate copied, boolean in) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            List<Tensor[]> pairs = new ArrayList<>();
            for (int k = 0; k < views.size(); k++) {
                TensorVector array = arrays.apply(k);
                for (int i = 0; array != null && i < shares.length; i++) {
                    if (parts.get(k).get(i).length() > 0 && copied.test(i)) {
                        Tensor here = shares.length == 1 ? views.get(k) : pieces.get(k).get(i);
                        Tensor there = array.get(i);
                        pairs.add(in ? new Tensor[] {here, there} : new Tensor[] {there, here});
                    }
                }
            }
            FusedOperator.copy(pairs);
        }
    }

    /**
     * Returns the gradient of a weight, or this rank's part of it.
     *
     * @param place the number of the weight
     * @return a view in the weight's shape, or of a part [elements], which stays open
     */
    public TensorView get(int place) {
        return TensorView.of(views.get(place));
    }

    /**
     * Returns which elements of a weight are this rank's.
     *
     * @param place the number of the weight
     * @return the range, or {@code null} if each rank has all
     */
    public @Nullable ShardRange getRange(int place) {
        return shares.length == 1 ? null : parts.get(place).get(rank);
    }

    /**
     * Returns all gradients.
     *
     * @return a view, [elements of all weights]
     */
    public TensorView getAll() {
        return TensorView.of(flat);
    }

    /**
     * Returns this rank's parts of all gradients.
     *
     * @return a view, [elements]
     */
    public TensorView getOwn() {
        return TensorView.of(own);
    }

    /**
     * Returns how many elements each rank has.
     *
     * @return the elements, by rank
     */
    public long[] getShares() {
        return shares.clone();
    }

    /** Frees the memory. */
    @Override
    public void close() {
        views.forEach(Tensor::close);
        views.clear();
        pieces.forEach(each -> each.forEach(Tensor::close));
        pieces.clear();
        for (TensorVector each : weights) {
            if (each != null) {
                each.close();
            }
        }
        own.close();
        flat.close();
    }
}
