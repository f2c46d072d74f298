package io.djltp.region;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.torch.Autograd;
import io.djltp.torch.LibTorch;
import io.djltp.torch.TensorView;
import io.djltp.torch.TorchScope;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.MemoryFormat;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;

/**
 * The mappings between a replicated and a tensor-parallel region of a network, for one rank: each
 * is a collective in the forward pass, in the backward pass, or in both.
 *
 * <table>
 * <caption>The mappings</caption>
 * <tr><th>mapping</th><th>forward</th><th>backward</th></tr>
 * <tr><td>{@link #copyToRegion}</td><td>identity</td><td>all-reduce</td></tr>
 * <tr><td>{@link #reduceFromRegion}</td><td>all-reduce</td><td>identity</td></tr>
 * <tr><td>{@link #gatherFromRegion}</td><td>all-gather, last axis</td><td>own slice</td></tr>
 * <tr><td>{@link #scatterToRegion}</td><td>own slice, last axis</td><td>all-gather</td></tr>
 * <tr><td>{@link #gatherFromSequenceRegion}</td><td>all-gather, axis 0</td><td>reduce-scatter, or
 * own slice where the consumer is replicated</td></tr>
 * <tr><td>{@link #gatherRows}</td><td>all-gather, axis 0</td><td>own rows</td></tr>
 * <tr><td>{@link #scatterToSequenceRegion}</td><td>own slice, axis 0</td><td>all-gather</td></tr>
 * <tr><td>{@link #reduceScatterToSequenceRegion}</td><td>reduce-scatter, axis
 * 0</td><td>all-gather</td></tr>
 * </table>
 *
 * <p>The mappings are those of Megatron-LM (Shoeybi et al., 2019, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>; sequence parallelism: Korthikanti
 * et al., 2022, <a href="https://arxiv.org/abs/2205.05198">arXiv:2205.05198</a>), here with
 * balanced ranges that may differ by one between ranks. In a group of one rank all of them are the
 * identity.
 *
 * <p>DJL has no autograd functions of the user's own. A collective of the backward pass is a
 * gradient hook on a view of the input; one of the forward pass writes into memory that only the
 * mapping has seen, which autograd needs not know. There is one hook object for each kind of
 * backward, as long-lived as this object, which libtorch requires.
 *
 * <p>The mappings never change their input, unless told that they own it.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class RegionMappings implements AutoCloseable {

    private final Communicator communicator;
    private final String issuer;
    private final AxisSlices slices;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final GradientHook allReduceOwned;
    private final GradientHook allReduceShared;
    private final GradientHook gatherLast;
    private final GradientHook gatherFirst;
    private final GradientHook reduceScatterFirst;

    /**
     * Creates the mappings of a rank.
     *
     * @param communicator the rank's end of the group
     */
    public RegionMappings(Communicator communicator) {
        this(communicator, null);
    }

    /**
     * Creates the mappings of a rank.
     *
     * @param communicator the rank's end of the group
     * @param issuer who uses them, which errors then name, or {@code null}
     */
    public RegionMappings(Communicator communicator, String issuer) {
        LibTorch.load();
        this.communicator = communicator;
        this.issuer = issuer;
        slices = new AxisSlices(communicator);
        allReduceOwned = new GradientHook(this::allReduce, true, failure);
        allReduceShared = new GradientHook(this::allReduce, false, failure);
        // the next three get the zero-padded gradient of a slice or a product: their own
        gatherLast = new GradientHook(this::gatherLast, true, failure);
        gatherFirst = new GradientHook(this::gatherFirst, true, failure);
        reduceScatterFirst = new GradientHook(this::reduceScatterFirst, false, failure);
    }

    /**
     * Enters a tensor-parallel region: identity forward, all-reduce of the gradient backward.
     *
     * @param input a replicated array of any shape
     * @return a view of the input
     */
    public NDArray copyToRegion(NDArray input) {
        return copyToRegion(input, false);
    }

    /**
     * Enters a tensor-parallel region: identity forward, all-reduce of the gradient backward.
     *
     * @param input a replicated array of any shape
     * @param ownsGradient whether the only consumer of the result is a matrix product, whose
     *     gradient is fresh memory that may be reduced in place
     * @return a view of the input
     */
    public NDArray copyToRegion(NDArray input, boolean ownsGradient) {
        return single() ? input : hooked(input, ownsGradient ? allReduceOwned : allReduceShared);
    }

    /**
     * Returns whether {@link #columnLinear} can reduce the gradient of the input while it computes
     * that of the weight.
     *
     * @param input the input of the layer
     * @param weight the rank's shard of the weight
     * @return whether the backend is asynchronous, and both need a gradient
     */
    public boolean canOverlap(NDArray input, NDArray weight) {
        return !single()
                && communicator.isAsynchronous()
                && Autograd.isRecording()
                && TensorView.of(input).requiresGradient()
                && TensorView.of(weight).requiresGradient();
    }

    /**
     * Enters a tensor-parallel region by a column-parallel product: backward, the gradient of the
     * input is reduced while that of the weight is computed.
     *
     * @param input a replicated array, [.., in]
     * @param weight the rank's shard of the weight, [out/p, in], a leaf
     * @param bias the rank's shard of the bias, [out/p], or {@code null}
     * @param gathered whether {@code input} is the result of {@link #gatherFromSequenceRegion}
     *     without a partial gradient: the gradient is then reduce-scattered, else all-reduced
     * @return the rank's slice of the product, [.., out/p]
     */
    public NDArray columnLinear(NDArray input, NDArray weight, NDArray bias, boolean gathered) {
        Function<Tensor, Work> reduction =
                gathered ? this::beginReduceScatter : this::beginAllReduce;
        return new OverlappedLinear(reduction, failure).forward(input, weight, bias);
    }

    /**
     * Leaves a tensor-parallel region: all-reduce forward, identity backward.
     *
     * @param input this rank's summand
     * @return the sum, on every rank
     */
    public NDArray reduceFromRegion(NDArray input) {
        return reduceFromRegion(input, false);
    }

    /**
     * Leaves a tensor-parallel region: all-reduce forward, identity backward.
     *
     * @param input this rank's summand
     * @param ownsInput whether {@code input} is the fresh result of a matrix product that nothing
     *     else reads, which then is reduced in place
     * @return the sum, on every rank
     */
    public NDArray reduceFromRegion(NDArray input, boolean ownsInput) {
        if (single()) {
            return input;
        }
        NDArray output = ownsInput && TensorView.of(input).isContiguous() ? input : copy(input);
        issue().allReduce(output, ReduceOp.SUM);
        return output;
    }

    /**
     * Gathers the slices of the last axis: all-gather forward, own slice of the gradient backward.
     * For a consumer that is replicated, and whose gradient is therefore whole on every rank.
     *
     * @param input this rank's slice, [..., length of the rank's range of {@code total}]
     * @param total the length of the last axis over all ranks
     * @return the whole, [..., total]
     */
    public NDArray gatherFromRegion(NDArray input, long total) {
        if (single()) {
            return input;
        }
        int axis = input.getShape().dimension() - 1;
        slices.checkSlice(input.getShape(), axis, total);
        try (PointerScope scope = new PointerScope()) {
            Tensor whole = slices.padded(input, axis, total);
            try (TorchScope guard = TorchScope.withoutGraph()) {
                gatherLast(whole);
            }
            return TensorView.toArray(whole, input.getManager());
        }
    }

    /**
     * Takes this rank's slice of the last axis: own slice forward, all-gather of the gradient
     * backward.
     *
     * @param input the whole, [..., total]
     * @return this rank's slice, a view
     */
    public NDArray scatterToRegion(NDArray input) {
        int axis = input.getShape().dimension() - 1;
        return single() ? input : slices.slice(hooked(input, gatherLast), axis);
    }

    /**
     * Gathers the slices of axis 0: all-gather forward; backward the reduce-scatter of gradients
     * that are partial, as those of a tensor-parallel consumer are, or the own slice of one that is
     * whole.
     *
     * @param input this rank's slice, [length of the rank's range of {@code total}, ...]
     * @param total the length of axis 0 over all ranks
     * @param partialGradient whether every rank's gradient is a summand of the whole gradient
     * @return the whole, [total, ...]
     */
    public NDArray gatherFromSequenceRegion(NDArray input, long total, boolean partialGradient) {
        if (single()) {
            return input;
        }
        slices.checkSlice(input.getShape(), 0, total);
        try (PointerScope scope = new PointerScope()) {
            Tensor whole = slices.padded(input, 0, total);
            try (TorchScope guard = TorchScope.withoutGraph()) {
                gatherFirst(whole);
            }
            if (partialGradient && whole.requires_grad()) {
                whole.register_hook(reduceScatterFirst);
            }
            return TensorView.toArray(whole, input.getManager());
        }
    }

    /**
     * Gathers the rows of all ranks, of which each may have any number: all-gather forward, the own
     * rows of the gradient backward. For a consumer that is replicated.
     *
     * @param input this rank's rows, [rows of this rank, ...]
     * @param rows the number of rows of each rank
     * @return the rows of all ranks, [sum of the rows, ...]
     */
    public NDArray gatherRows(NDArray input, long[] rows) {
        if (single()) {
            return input;
        }
        int rank = communicator.getRank();
        long start = Arrays.stream(rows, 0, rank).sum();
        long total = Arrays.stream(rows).sum();
        long size = input.getShape().slice(1).size();
        long[] shares = Arrays.stream(rows).map(count -> count * size).toArray();
        ShardRange own = new ShardRange(start, rows[rank]);
        try (PointerScope scope = new PointerScope()) {
            Tensor whole = AxisSlices.padded(input, 0, own, total);
            try (TorchScope guard = TorchScope.withoutGraph()) {
                gatherFirst(whole, own, shares);
            }
            return TensorView.toArray(whole, input.getManager());
        }
    }

    /**
     * Takes this rank's slice of axis 0: own slice forward, all-gather of the gradient backward.
     *
     * @param input the whole, [total, ...]
     * @return this rank's slice, a view
     */
    public NDArray scatterToSequenceRegion(NDArray input) {
        return single() ? input : slices.slice(hooked(input, gatherFirst), 0);
    }

    /**
     * Leaves a tensor-parallel region into slices of axis 0: reduce-scatter forward, all-gather of
     * the gradient backward.
     *
     * @param input this rank's summand of the whole, [total, ...]
     * @return this rank's slice of the sum
     */
    public NDArray reduceScatterToSequenceRegion(NDArray input) {
        if (single()) {
            return input;
        }
        try (PointerScope scope = new PointerScope();
                NDArray view = hooked(input, gatherFirst)) {
            Tensor whole = TensorView.of(view).tensor();
            ShardRange own = slices.range(whole.size(0));
            // a plain clone would keep the order of the axes in memory
            Tensor output =
                    whole.narrow(0, own.start(), own.length())
                            .clone(new MemoryFormatOptional(MemoryFormat.Contiguous));
            try (TorchScope guard = TorchScope.withoutGraph()) {
                issue().reduceScatter(
                                TensorView.of(whole.detach().contiguous()),
                                TensorView.of(output.detach()),
                                slices.shares(whole, 0),
                                ReduceOp.SUM)
                        .await();
            }
            return TensorView.toArray(output, input.getManager());
        }
    }

    /**
     * Returns what went wrong in a backward pass, and forgets it. An exception of a hook reaches
     * the caller of the backward pass only as a message of libtorch's.
     *
     * @return the first exception, or {@code null}
     */
    public Throwable takeFailure() {
        return failure.getAndSet(null);
    }

    /** Frees the hooks. No backward pass through a mapping may follow. */
    @Override
    public void close() {
        for (GradientHook hook :
                new GradientHook[] {
                    allReduceOwned, allReduceShared, gatherLast, gatherFirst, reduceScatterFirst
                }) {
            hook.release();
            hook.close();
        }
    }

    /** Returns the group, which from here on knows who calls. */
    private Communicator issue() {
        communicator.setIssuer(issuer);
        return communicator;
    }

    private boolean single() {
        return communicator.getSize() == 1;
    }

    private static NDArray hooked(NDArray input, GradientHook hook) {
        // a hook on the input itself would also see gradients of its other consumers
        NDArray view = input.reshape(input.getShape());
        TensorView tensor = TensorView.of(view);
        if (tensor.requiresGradient()) {
            tensor.tensor().register_hook(hook);
        }
        return view;
    }

    private static NDArray copy(NDArray input) {
        try (PointerScope scope = new PointerScope()) {
            Tensor tensor = TensorView.of(input).tensor();
            Tensor copy = tensor.is_contiguous() ? tensor.clone() : tensor.contiguous();
            return TensorView.toArray(copy, input.getManager());
        }
    }

    private void allReduce(Tensor gradient) {
        beginAllReduce(gradient).await();
    }

    private Work beginAllReduce(Tensor gradient) {
        return issue().allReduce(TensorView.of(gradient), ReduceOp.SUM);
    }

    private void reduceScatterFirst(Tensor gradient) {
        beginReduceScatter(gradient).await();
    }

    private Work beginReduceScatter(Tensor gradient) {
        ShardRange own = slices.range(gradient.size(0));
        // the caller's scope keeps the slice until the operation is complete
        return issue().reduceScatter(
                        TensorView.of(gradient),
                        TensorView.of(gradient.narrow(0, own.start(), own.length())),
                        slices.shares(gradient, 0),
                        ReduceOp.SUM);
    }

    /** Fills a whole, in which the own slice of axis 0 is right, with the others' slices. */
    private void gatherFirst(Tensor whole) {
        gatherFirst(whole, slices.range(whole.size(0)), slices.shares(whole, 0));
    }

    private void gatherFirst(Tensor whole, ShardRange own, long[] shares) {
        Tensor flat = whole.detach();
        issue().allGather(
                        TensorView.of(flat.narrow(0, own.start(), own.length())),
                        TensorView.of(flat),
                        shares)
                .await();
    }

    /** Fills a whole, in which the own slice of the last axis is right, with the others' slices. */
    private void gatherLast(Tensor whole) {
        Tensor target = whole.detach();
        int axis = (int) whole.dim() - 1;
        long total = whole.size(axis);
        long[] shares = slices.shares(whole, axis);
        ShardRange own = slices.range(total);
        Tensor mine = target.narrow(axis, own.start(), own.length()).contiguous();
        Tensor all = torch.empty_like(target).view(-1);
        issue().allGather(TensorView.of(mine), TensorView.of(all), shares).await();
        long start = 0;
        for (int i = 0; i < shares.length; i++) {
            ShardRange range = Cut.balanced(total, shares.length).getRange(i);
            if (i != communicator.getRank() && shares[i] > 0) {
                Tensor place = target.narrow(axis, range.start(), range.length());
                place.copy_(all.narrow(0, start, shares[i]).view(place.sizes()));
            }
            start += shares[i];
        }
    }
}
