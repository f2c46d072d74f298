package io.djltp.region;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.cut.Cut;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.LinearProduct;
import io.djltp.internal.torch.TensorView;
import io.djltp.torch.Precision;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;

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
public final class RegionMappings extends SliceMappings {

    private final Communicator communicator;
    private final GradientHook allReduceOwned;
    private final GradientHook allReduceShared;

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
        super(communicator, issuer);
        LibTorch.load();
        this.communicator = communicator;
        allReduceOwned = new GradientHook(this::allReduce, true, failure);
        allReduceShared = new GradientHook(this::allReduce, false, failure);
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
     * Enters a tensor-parallel region by a column-parallel product, see {@link
     * #columnLinear(LinearProduct, NDArray, NDArray, NDArray, Cut, int)}, where axis 0 was gathered
     * or none, in float32.
     *
     * @param input a replicated array, [.., in]
     * @param weight the rank's shard of the weight, [out/p, in], a leaf
     * @param bias the rank's shard of the bias, [out/p], or {@code null}
     * @param gathered how axis 0 of the input was cut before it was gathered, or {@code null}
     * @return the rank's slice of the product, [.., out/p]
     */
    public NDArray columnLinear(NDArray input, NDArray weight, NDArray bias, Cut gathered) {
        LinearProduct product = new LinearProduct(Precision.FLOAT32);
        return columnLinear(product, input, weight, bias, gathered, 0);
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
            NDArray bias,
            Cut gathered,
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
     * Sends rows to the ranks that they are for: all-to-all forward; backward, the gradient of each
     * row goes back to the rank that the row came from. Any number of rows may go from a rank to
     * another, none included.
     *
     * @param input this rank's rows, those for rank 0 first, [sum of {@code sent}, ...]
     * @param sent the number of rows that go to each rank
     * @param received the number of rows that come from each rank: what it sends to this one
     * @return the rows that arrive, those of rank 0 first, [sum of {@code received}, ...]
     * @throws IllegalArgumentException if axis 0 is not as long as what is sent, or the lengths are
     *     not those of the group
     */
    public NDArray exchange(NDArray input, long[] sent, long[] received) {
        return single() && Arrays.equals(sent, received)
                ? input
                : new Exchange(this::issue, sent, received, failure).forward(input);
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

    /**
     * Returns where the first exception of a backward pass is kept, for hooks of others.
     *
     * @return the place, which {@link #takeFailure} empties
     */
    public AtomicReference<Throwable> getFailure() {
        return failure;
    }

    /** Frees the hooks. No backward pass through a mapping may follow. */
    @Override
    public void close() {
        allReduceOwned.close();
        allReduceShared.close();
        super.close();
    }

    private static NDArray hooked(NDArray input, GradientHook hook) {
        try (PointerScope scope = new PointerScope()) {
            Tensor tensor = TensorView.of(input).tensor();
            return TensorView.toArray(GradientHook.hooked(tensor, hook), input.getManager());
        }
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
}
