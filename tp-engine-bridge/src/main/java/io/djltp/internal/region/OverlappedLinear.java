package io.djltp.internal.region;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.Work;
import io.djltp.internal.Errors;
import io.djltp.internal.torch.LinearProduct;
import io.djltp.internal.torch.TensorView;
import io.djltp.torch.Precision;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.NoGradGuard;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorBase;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.VoidTensorHook;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;

/**
 * A linear function whose backward pass begins to reduce the input's gradient before it computes
 * the weight's, so that the two go on at the same time. Megatron-LM does the same in its {@code
 * LinearWithGradAccumulationAndAsyncCommunication}.
 *
 * <p>Libtorch's own backward node computes both gradients before any hook runs. Here it gets a
 * weight that needs no gradient, and the hook of the input computes that of the weight and adds it
 * to the leaf.
 *
 * <p>An instance serves one call. It lives as long as the manager of the call's input: until the
 * backward pass is done.
 */
@SuppressWarnings("try") // a scope is used by being open
final class OverlappedLinear implements AutoCloseable {

    private final LinearProduct product;
    private final Function<Tensor, Work> reduction;
    private final GradientHook inputHook;
    private final OutputHook outputHook = new OutputHook();
    private @Nullable Tensor input;
    private @Nullable Tensor weight;
    private @Nullable Tensor outputGradient;

    /**
     * Prepares a call.
     *
     * @param product the precision of the three products
     * @param reduction begins to reduce a gradient of the input, in place
     * @param failure where the first exception of a hook is kept
     */
    OverlappedLinear(
            LinearProduct product,
            Function<Tensor, Work> reduction,
            AtomicReference<@Nullable Throwable> failure) {
        this.product = product;
        this.reduction = reduction;
        inputHook = GradientHook.changing(this::reduceAndAccumulate, true, failure);
    }

    /**
     * Computes the function.
     *
     * @param x the input, [.., in], which requires a gradient
     * @param w the weight, [out, in], a leaf that requires a gradient
     * @param bias the bias, [out], or {@code null}
     * @return the output, [.., out]
     */
    NDArray forward(NDArray x, NDArray w, @Nullable NDArray bias) {
        product.check(x, w);
        x.getManager().attachInternal(UUID.randomUUID().toString(), this);
        try (PointerScope scope = new PointerScope();
                NDArray view = x.reshape(x.getShape())) {
            Tensor hooked = TensorView.of(view).tensor();
            hooked.register_hook(inputHook);
            Tensor factor = product.round(hooked);
            input = factor.detach().retainReference();
            weight = new Tensor(TensorView.of(w).tensor()).retainReference();
            Tensor other = product.round(weight.detach());
            Tensor output = compute(factor, other, bias);
            output.register_hook(outputHook);
            return TensorView.toArray(output, x.getManager());
        }
    }

    private Tensor compute(Tensor x, Tensor w, @Nullable NDArray bias) {
        TensorOptional optional =
                bias == null
                        ? new TensorOptional()
                        : new TensorOptional(TensorView.of(bias).tensor());
        if (product.precision() == Precision.FLOAT32) {
            return torch.linear(x, w, optional);
        }
        Tensor y = torch.linear(x, w, new TensorOptional()).to(ScalarType.Float);
        return bias == null ? y : y.add_(optional.get());
    }

    /** The hook of the input: gets its gradient, fresh from the matrix product. */
    private void reduceAndAccumulate(Tensor inputGradient) {
        try (NoGradGuard guard = new NoGradGuard()) {
            Work work = reduction.apply(inputGradient);
            try {
                accumulate();
            } finally {
                work.await(); // also when this rank fails: the tensor is in use until then
            }
        }
    }

    private void accumulate() {
        Tensor from = kept(input);
        Tensor leaf = kept(weight);
        Tensor arrived = kept(outputGradient);
        Tensor rows = from.reshape(-1, from.size(-1));
        Tensor above = product.round(arrived);
        Tensor left = above.reshape(-1, above.size(-1)).t();
        Tensor gradient = leaf.grad();
        Tensor own = left.mm(rows).to(leaf.scalar_type()); // the same tensor if it is
        if (gradient.defined()) {
            gradient.add_(own); // as autograd does: in one operation the bits differ
        } else {
            leaf.mutable_grad().put(own);
        }
        arrived.close();
        outputGradient = null;
    }

    /** Keeps the gradient of the output for that of the weight. */
    private final class OutputHook extends VoidTensorHook {

        /** {@inheritDoc} */
        @Override
        public void call(TensorBase gradient) {
            try (gradient) {
                release(outputGradient);
                outputGradient = new Tensor(gradient).retainReference();
            }
        }
    }

    private static Tensor kept(@Nullable Tensor tensor) {
        return Errors.present(tensor, "A backward pass without a forward pass");
    }

    private static void release(@Nullable Tensor tensor) {
        if (tensor != null) {
            tensor.close();
        }
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        release(outputGradient);
        release(input);
        release(weight);
        outputGradient = null;
        input = null;
        weight = null;
        inputHook.close();
        outputHook.close();
    }
}
