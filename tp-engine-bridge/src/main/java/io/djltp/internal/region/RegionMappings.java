package io.djltp.internal.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.LinearProduct;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
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
 * <tr><td>{@link #exchange}</td><td>all-to-all, axis 0</td><td>all-to-all, lengths
 * swapped</td></tr>
 * </table>
 *
 * <p>The mappings are those of Megatron-LM (Shoeybi et al., 2019, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>; sequence parallelism: Korthikanti
 * et al., 2022, <a href="https://arxiv.org/abs/2205.05198">arXiv:2205.05198</a>), here with any
 * {@link Cut}: slices of different lengths, of several ranges, and ranges that several ranks have.
 * In a group of one rank all of them are the identity.
 *
 * <p>DJL has no autograd functions of the user's own. A collective of the backward pass is a
 * gradient hook on a view of the input; one of the forward pass writes into memory that only the
 * mapping has seen, which autograd needs not know. There is one hook object for each kind of
 * backward and each cut, as long-lived as this object, which libtorch requires.
 *
 * <p>The mappings never change their input, unless told that they own it.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class RegionMappings implements AutoCloseable {

    private static final int LAST = -1;

    private final Communicator communicator;
    private final @Nullable String issuer;
    private final AtomicReference<@Nullable Throwable> failure =
            new AtomicReference<>(); // of hooks
    private final Map<AxisKey, CutAxis> axes = new HashMap<>();
    private final GradientHook allReduceOwned;
    private final GradientHook allReduceShared;

    private record AxisKey(Cut cut, int number) {}

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
    public RegionMappings(Communicator communicator, @Nullable String issuer) {
        LibTorch.load();
        this.communicator = communicator;
        this.issuer = issuer;
        Consumer<Tensor> allReduce = gradient -> beginAllReduce(gradient).await();
        allReduceOwned = GradientHook.changing(allReduce, true, failure);
        allReduceShared = GradientHook.changing(allReduce, false, failure);
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
        GradientHook hook = ownsGradient ? allReduceOwned : allReduceShared;
        return single()
                ? input
                : TorchScope.array(
                        input.getManager(), () -> hook.on(TensorView.of(input).tensor()));
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
     * @param product the precision
     * @param input a replicated array, [.., in]
     * @param weight the rank's shard of the weight, [out/p, in], a leaf
     * @param bias the rank's shard of the bias, [out/p], or {@code null}
     * @param gathered if {@code input} is the result of {@link #gatherFromSequenceRegion} without a
     *     partial gradient, the cut of that: the gradient is then reduce-scattered. {@code null} if
     *     not: it is all-reduced
     * @param axis the number of the axis that was gathered
     * @return the rank's slice of the product, [.., out/p]
     */
    public NDArray columnLinear(
            LinearProduct product,
            NDArray input,
            NDArray weight,
            @Nullable NDArray bias,
            @Nullable Cut gathered,
            int axis) {
        Function<Tensor, Work> reduction =
                gathered == null ? this::beginAllReduce : axis(gathered, axis)::beginSum;
        return new OverlappedLinear(product, reduction, failure).forward(input, weight, bias);
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
     * For a consumer that is replicated, and whose gradient is therefore whole on every rank. What
     * several ranks have is taken from the first of them, which gets the gradient of it.
     *
     * @param input this rank's slice, [..., length of the rank's shard]
     * @param cut how the last axis is cut
     * @return the whole, [..., length of the axis]
     * @throws IllegalArgumentException if the slice is not as long as the rank's shard
     */
    public NDArray gatherFromRegion(NDArray input, Cut cut) {
        return isWhole(cut) ? input : gather(input, axis(cut, LAST), false);
    }

    /**
     * Takes this rank's slice of the last axis: own slice forward; backward the slices' gradients
     * are put together by an all-gather, or summed where several ranks have taken the same.
     *
     * @param input the whole, [..., length of the axis]
     * @param cut how the last axis is cut
     * @return this rank's slice, [..., length of the rank's shard]; a view if it is one range
     * @throws IllegalArgumentException if the last axis has another length
     */
    public NDArray scatterToRegion(NDArray input, Cut cut) {
        return isWhole(cut) ? input : scatter(input, axis(cut, LAST));
    }

    /**
     * Gathers the slices of axis 0, see {@link #gatherFromSequenceRegion(NDArray, Cut, int,
     * boolean)}.
     *
     * @param input this rank's slice, [length of the rank's shard, ...]
     * @param cut how axis 0 is cut
     * @param partialGradient whether every rank's gradient is a summand of the whole gradient
     * @return the whole, [length of the axis, ...]
     * @throws IllegalArgumentException if the slice is not as long as the rank's shard
     */
    public NDArray gatherFromSequenceRegion(NDArray input, Cut cut, boolean partialGradient) {
        return gatherFromSequenceRegion(input, cut, 0, partialGradient);
    }

    /**
     * Gathers the slices of an axis: all-gather forward; backward the reduce-scatter of gradients
     * that are partial, as those of a tensor-parallel consumer are, or the own slice of one that is
     * whole.
     *
     * @param input this rank's slice, [.., length of the rank's shard, ..]
     * @param cut how the axis is cut
     * @param axis the number of the axis
     * @param partialGradient whether every rank's gradient is a summand of the whole gradient
     * @return the whole, [.., length of the axis, ..]
     * @throws IllegalArgumentException if the slice is not as long as the rank's shard
     */
    public NDArray gatherFromSequenceRegion(
            NDArray input, Cut cut, int axis, boolean partialGradient) {
        return isWhole(cut) ? input : gather(input, axis(cut, axis), partialGradient);
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
        return gatherFromSequenceRegion(input, Cut.ofLengths(rows), false);
    }

    private NDArray gather(NDArray input, CutAxis axis, boolean partialGradient) {
        axis.check(input.getShape(), false);
        return TorchScope.array(
                input.getManager(),
                () -> {
                    Tensor whole = axis.padded(input);
                    try (TorchScope guard = TorchScope.withoutGraph()) {
                        axis.fill(whole);
                    }
                    if (partialGradient && whole.requires_grad()) {
                        whole.register_hook(axis.summed);
                    }
                    return whole;
                });
    }

    /**
     * Takes this rank's slice of axis 0, see {@link #scatterToSequenceRegion(NDArray, Cut, int)}.
     *
     * @param input the whole, [length of the axis, ...]
     * @param cut how axis 0 is cut
     * @return this rank's slice, [length of the rank's shard, ...]; a view if it is one range
     * @throws IllegalArgumentException if axis 0 has another length
     */
    public NDArray scatterToSequenceRegion(NDArray input, Cut cut) {
        return scatterToSequenceRegion(input, cut, 0);
    }

    /**
     * Takes this rank's slice of an axis: own slice forward; backward the slices' gradients are put
     * together by an all-gather, or summed where several ranks have taken the same.
     *
     * @param input the whole, [.., length of the axis, ..]
     * @param cut how the axis is cut
     * @param axis the number of the axis
     * @return this rank's slice, [.., length of the rank's shard, ..]; a view if it is one range
     * @throws IllegalArgumentException if the axis has another length
     */
    public NDArray scatterToSequenceRegion(NDArray input, Cut cut, int axis) {
        return isWhole(cut) ? input : scatter(input, axis(cut, axis));
    }

    private NDArray scatter(NDArray input, CutAxis axis) {
        axis.check(input.getShape(), true);
        return TorchScope.array(
                input.getManager(),
                () -> axis.slice(axis.ofWhole.on(TensorView.of(input).tensor())));
    }

    /**
     * Leaves a tensor-parallel region into slices of axis 0, see {@link
     * #reduceScatterToSequenceRegion(NDArray, Cut, int)}.
     *
     * @param input this rank's summand of the whole, [length of the axis, ...]
     * @param cut how axis 0 is cut
     * @return this rank's slice of the sum, [length of the rank's shard, ...]
     * @throws IllegalArgumentException if axis 0 has another length
     */
    public NDArray reduceScatterToSequenceRegion(NDArray input, Cut cut) {
        return reduceScatterToSequenceRegion(input, cut, 0);
    }

    /**
     * Leaves a tensor-parallel region into slices of an axis: reduce-scatter forward; backward as
     * {@link #scatterToSequenceRegion}.
     *
     * @param input this rank's summand of the whole, [.., length of the axis, ..]
     * @param cut how the axis is cut
     * @param number the number of the axis
     * @return this rank's slice of the sum, [.., length of the rank's shard, ..]
     * @throws IllegalArgumentException if the axis has another length
     */
    public NDArray reduceScatterToSequenceRegion(NDArray input, Cut cut, int number) {
        if (isWhole(cut)) {
            return input;
        }
        CutAxis axis = axis(cut, number);
        axis.check(input.getShape(), true);
        return TorchScope.array(
                input.getManager(),
                () -> {
                    Tensor whole = axis.ofWhole.on(TensorView.of(input).tensor());
                    Tensor output = CutAxis.contiguousCopy(axis.slice(whole));
                    try (TorchScope guard = TorchScope.withoutGraph()) {
                        axis.sumToSlice(whole.detach(), output.detach());
                    }
                    return output;
                });
    }

    /**
     * Sends rows to the ranks that they are for: all-to-all forward; backward, the gradient of each
     * row goes back to the rank that the row came from. Any number of rows may go from a rank to
     * another, none included.
     *
     * @param input this rank's rows, those for rank 0 first, [sum of {@code sent}, ...]
     * @param sent the number of rows that go to each rank; not to be changed
     * @param received the number of rows that come from each rank: what it sends to this one; not
     *     to be changed
     * @return the rows that arrive, those of rank 0 first, [sum of {@code received}, ...]
     * @throws IllegalArgumentException if axis 0 is not as long as what is sent, or the lengths are
     *     not those of the group
     */
    public NDArray exchange(NDArray input, long[] sent, long[] received) {
        if (single() && Arrays.equals(sent, received)) {
            return input;
        }
        long going = Arrays.stream(sent).sum();
        long coming = Arrays.stream(received).sum();
        Shape shape = input.getShape();
        if (shape.dimension() == 0 || shape.get(0) != going) {
            throw Errors.argument(
                    "Axis 0 of %s must have length %s for the rows %s that go to the ranks",
                    shape, going, Arrays.toString(sent));
        }
        GradientHook sendBack =
                GradientHook.changing(
                        gradient -> {
                            Tensor arrived = gradient.narrow(0, 0, coming).clone();
                            exchange(arrived, gradient.narrow(0, 0, going), received, sent);
                        },
                        true, // the gradient of a slice: zeros with a copy in them
                        failure);
        input.getManager().attachInternal(UUID.randomUUID().toString(), sendBack);
        return TorchScope.array(
                input.getManager(),
                () -> {
                    Tensor tensor = TensorView.of(input).tensor();
                    // Numbers of rows that come and go differ, and so does the shape of a gradient
                    // before and after it. The node with the hook has the larger number; what one
                    // of the two directions does not need of it is cut off.
                    long[] padding = new long[2 * (int) tensor.dim()]; // from the last axis back
                    padding[padding.length - 1] = Math.max(0, coming - going);
                    Tensor place =
                            torch.constant_pad_nd(tensor, padding, new Scalar(0)).contiguous();
                    if (place.requires_grad()) {
                        place.register_hook(sendBack);
                    }
                    Tensor output = place.narrow(0, 0, coming);
                    try (TorchScope guard = TorchScope.withoutGraph()) {
                        exchange(tensor.contiguous(), output.detach(), sent, received);
                    }
                    return output;
                });
    }

    private void exchange(Tensor from, Tensor to, long[] going, long[] coming) {
        long size = 1; // of a row; of none at all the elements do not tell
        for (int i = 1; i < from.dim(); i++) {
            size *= from.size(i);
        }
        TensorView in = TensorView.of(from);
        issue().allToAll(in, TensorView.of(to), elements(going, size), elements(coming, size))
                .await();
    }

    private static long[] elements(long[] rows, long size) {
        return Arrays.stream(rows).map(each -> each * size).toArray();
    }

    /**
     * Returns what went wrong in a backward pass, and forgets it. An exception of a hook reaches
     * the caller of the backward pass only as a message of libtorch's.
     *
     * @return the first exception, or {@code null}
     */
    public @Nullable Throwable takeFailure() {
        return failure.getAndSet(null);
    }

    /**
     * Returns where the first exception of a backward pass is kept, for hooks of others.
     *
     * @return the place, which {@link #takeFailure} empties
     */
    public AtomicReference<@Nullable Throwable> getFailure() {
        return failure;
    }

    private static NDArray copy(NDArray input) {
        return TorchScope.array(
                input.getManager(), () -> CutAxis.contiguousCopy(TensorView.of(input).tensor()));
    }

    private Work beginAllReduce(Tensor gradient) {
        return issue().allReduce(TensorView.of(gradient), ReduceOp.SUM);
    }

    /** Returns the group, which from here on knows who calls. */
    private Communicator issue() {
        communicator.setIssuer(issuer);
        return communicator;
    }

    private boolean single() {
        return communicator.getSize() == 1;
    }

    /** Returns whether a rank alone has the whole. */
    private boolean isWhole(Cut cut) {
        if (cut.getRanks() != communicator.getSize()) {
            throw Errors.argument(
                    "A cut over %s ranks is not one of a group of %s",
                    cut.getRanks(), communicator.getSize());
        }
        return single() && cut.isConsecutive();
    }

    /** Returns an axis and its hooks, the same at every call. */
    private CutAxis axis(Cut cut, int number) {
        return axes.computeIfAbsent(
                new AxisKey(cut, number),
                key -> new CutAxis(this::issue, communicator.getRank(), cut, number, failure));
    }

    /** Frees the hooks. No backward pass through a mapping may follow. */
    @Override
    public void close() {
        allReduceOwned.close();
        allReduceShared.close();
        axes.values().forEach(CutAxis::close);
    }
}
