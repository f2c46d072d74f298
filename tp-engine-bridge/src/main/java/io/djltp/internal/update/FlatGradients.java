package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Tensor;
import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * The gradients of several weights one after another in memory, so that they are summed over ranks
 * by one operation. The memory is made once and serves all steps.
 *
 * <p>Where ranks share the update out, each has a range of this memory: a reduce-scatter leaves
 * each rank the sums of its range, and the updated values go the way back.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class FlatGradients implements AutoCloseable {

    /** Elements: as many as the widest vector register has, of the smallest type of a state. */
    private static final long UNIT = 16;

    private final List<Cut> cuts; // of each weight over the ranks
    private final long[] shares; // elements of each rank
    private final int rank;
    private final Tensor flat; // [elements of all weights]
    private final Tensor own; // of the flat tensor: this rank's range
    private final List<Tensor> views = new ArrayList<>(); // of the flat tensor, as the weights
    private final List<Tensor> parts = new ArrayList<>(); // of the views: what is this rank's
    private List<Long> memory = List.of(); // where the weights were when the copies were listed
    private final List<FusedOperator.Lists> copies = new ArrayList<>(); // from weights, and to them

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
        cuts = cut(weights.stream().map(NDArray::size).toList(), ranks);
        shares = new long[ranks];
        Arrays.setAll(shares, i -> cuts.stream().mapToLong(cut -> cut.getShardLength(i)).sum());
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor first = TensorView.of(weights.get(0)).tensor();
            flat =
                    over
                            ? first.detach().view(-1).retainReference()
                            : WeightUpdate.zeros(first.options(), Arrays.stream(shares).sum());
            own =
                    flat.narrow(0, Arrays.stream(shares, 0, rank).sum(), shares[rank])
                            .retainReference();
            long start = 0;
            for (int k = 0; k < weights.size(); k++) {
                NDArray weight = weights.get(k);
                Tensor elements = flat.narrow(0, start, weight.size());
                views.add(elements.view(weight.getShape().getShape()).retainReference());
                if (ranks > 1) {
                    parts.add(part(elements, cuts.get(k).getRange(rank)).retainReference());
                }
                start += weight.size();
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
     * Cuts weights that lie one after another over the ranks that share their update out, each of
     * which gets as many elements. How an operation rounds an element depends on whether it lies in
     * a vector register or in what is left at the end: at the borders it is as in the update of the
     * whole weight.
     *
     * @param elements the number of elements of each weight
     * @param ranks the number of ranks
     * @return of each weight the ranges of the ranks, one after another, many of them empty
     */
    public static List<Cut> cut(List<Long> elements, int ranks) {
        long all = elements.stream().mapToLong(each -> each).sum();
        List<Cut> cuts = new ArrayList<>();
        long start = 0;
        for (long count : elements) {
            long[] lengths = new long[ranks];
            long end = 0;
            for (int i = 0; i < ranks; i++) {
                long units = Math.max(0, all * (i + 1) / ranks - start + UNIT - 1) / UNIT;
                lengths[i] = Math.min(count, units * UNIT) - end;
                end += lengths[i];
            }
            cuts.add(Cut.ofLengths(lengths));
            start += count;
        }
        return cuts;
    }

    private static Tensor part(Tensor array, ShardRange range) {
        return array.view(-1).narrow(0, range.start(), range.length());
    }

    private static void add(FusedOperator.Lists copies, Tensor to, Tensor from) {
        if (to.numel() > 0) {
            copies.add(0, to);
            copies.add(1, from);
        }
    }

    /**
     * Copies gradients to their places.
     *
     * @param gradients those of all weights, in their shapes, or {@code null} for one that is zero
     */
    public void set(List<@Nullable TensorView> gradients) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            FusedOperator.Lists pairs = FusedOperator.copies();
            for (int k = 0; k < views.size(); k++) {
                TensorView gradient = gradients.get(k);
                if (gradient == null) {
                    views.get(k).zero_();
                } else {
                    add(pairs, views.get(k), gradient.tensor());
                }
            }
            FusedOperator.copy(pairs);
        }
    }

    /**
     * Copies what is in their places into gradients.
     *
     * @param gradients those of all weights, in their shapes
     */
    public void copyTo(List<NDArray> gradients) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            FusedOperator.Lists pairs = FusedOperator.copies();
            for (int k = 0; k < views.size(); k++) {
                add(pairs, TensorView.of(gradients.get(k)).tensor(), views.get(k));
            }
            FusedOperator.copy(pairs);
        }
    }

    /**
     * Copies this rank's parts of weights to their places.
     *
     * @param weights all weights, contiguous
     */
    public void setOwn(List<NDArray> weights) {
        List<Long> now = weights.stream().map(each -> TensorView.of(each).address()).toList();
        try (TorchScope scope = TorchScope.withoutGraph()) {
            if (!memory.equals(now)) {
                memory = now;
                list(weights);
            }
            FusedOperator.copy(copies.get(0));
        }
    }

    /** Copies other ranks' parts into the weights that {@link #setOwn} had. */
    public void copyOthers() {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            FusedOperator.copy(copies.get(1));
        }
    }

    private void list(List<NDArray> weights) {
        copies.forEach(FusedOperator.Lists::close);
        copies.clear();
        copies.add(FusedOperator.copies().keep());
        copies.add(FusedOperator.copies().keep());
        for (int k = 0; k < views.size(); k++) {
            Tensor weight = TensorView.of(weights.get(k)).tensor();
            ShardRange mine = cuts.get(k).getRange(rank);
            add(copies.get(0), parts.get(k), part(weight, mine));
            long after = weight.numel() - mine.end();
            for (ShardRange other :
                    List.of(new ShardRange(0, mine.start()), new ShardRange(mine.end(), after))) {
                add(copies.get(1), part(weight, other), part(views.get(k), other));
            }
        }
    }

    /**
     * Returns the gradient of a weight, or this rank's part of it.
     *
     * @param place the number of the weight
     * @return a view in the weight's shape, or of a part [elements], which stays open
     */
    public TensorView get(int place) {
        return TensorView.of((shares.length == 1 ? views : parts).get(place));
    }

    /**
     * Returns how the elements of a weight are cut over the ranks.
     *
     * @param place the number of the weight
     * @return the cut
     */
    public Cut getCut(int place) {
        return cuts.get(place);
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
     * Returns this rank's range of all gradients.
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
        parts.forEach(Tensor::close);
        copies.forEach(FusedOperator.Lists::close);
        own.close();
        flat.close();
    }
}
