package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorBase;
import org.bytedeco.pytorch.VoidTensorHook;

import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.function.Consumer;

/**
 * The product \(y = x W^T\) of a linear layer, and the two of its backward pass, by {@link
 * OneDnnProduct}.
 *
 * <p>Autograd knows it as a product of no summands: of the first 0 features of x with those of W,
 * whose gradients cost nothing. Hooks put what it should be into the places: forward the product,
 * backward the gradients, into the zeros that autograd makes for the features that were left out.
 * So everything else is autograd's: which gradients are wanted, how they add up, and that nobody
 * has changed x or W since. {@link AutogradGraph} shows the product without the detour.
 *
 * <p>An instance serves one call, and lives as long as the manager of its input, or the graph.
 */
@SuppressWarnings("try") // a scope is used by being open
final class OneDnnLinear implements AutoCloseable {

    /** Whose manager was closed before the graph. */
    private static final List<OneDnnLinear> OUTLIVED = new ArrayList<>();

    private final Tensor input; // [rows, in], outside the graph, as all that follow
    private final Tensor weight; // [out, in]
    private final Tensor[] saved; // what nobody has but the graph and this call
    private final List<Hook> hooks = new ArrayList<>();
    private int wanted; // gradients that have not been computed since that of y came
    private Tensor above; // the gradient of y, until they are

    private OneDnnLinear(Tensor input, Tensor weight, Tensor... saved) {
        this.input = input;
        this.weight = weight;
        this.saved = saved;
    }

    /**
     * Returns whether the product of a layer is faster here than libtorch's own.
     *
     * @param x the input
     * @param weight the weight
     */
    static boolean isFaster(NDArray x, NDArray weight) {
        if (!OneDnnProduct.isUsed()
                || x.getDataType() != DataType.FLOAT32
                || weight.getDataType() != DataType.FLOAT32
                || x.getDevice().isGpu()
                || x.isSparse()) {
            return false;
        }
        Shape shape = x.getShape();
        long in = weight.getShape().get(1);
        int last = shape.dimension() - 1;
        // of a constant with more axes the graph keeps only a view that nobody else can ask about
        boolean known = last == 1 || !Autograd.isRecording() || requiresGradient(x);
        return last > 0
                && known
                && in > 0
                && shape.get(last) == in
                && OneDnnProduct.isFaster(shape.size() / in, in, weight.getShape().get(0));
    }

    private static boolean requiresGradient(NDArray x) {
        return TensorView.of(x).requiresGradient();
    }

    /**
     * Computes \(x W^T + b\).
     *
     * @param x the input, [.., in]
     * @param weight the weight W, [out, in]
     * @param bias the bias b, [out], or {@code null}
     * @return the output, [.., out], attached to the manager of the input
     */
    static NDArray of(NDArray x, NDArray weight, NDArray bias) {
        try (TorchScope scope = TorchScope.open()) {
            Tensor from = TensorView.of(x).tensor().contiguous();
            Tensor w = TensorView.of(weight).tensor();
            boolean recorded =
                    Autograd.isRecording() && (from.requires_grad() || w.requires_grad());
            Tensor y = recorded ? record(from, w, x.getManager()) : compute(from, w);
            if (bias != null) {
                y = y.add_(TensorView.of(bias).tensor());
            }
            return TensorView.toArray(y, x.getManager());
        }
    }

    private static Tensor compute(Tensor x, Tensor weight) {
        long[] shape = TensorView.of(x).getShape().getShape();
        shape[shape.length - 1] = weight.size(0);
        Tensor y = x.new_empty(shape);
        OneDnnProduct.multiply(rows(x.detach()), weight.detach().contiguous().t(), rows(y));
        return y;
    }

    /** Puts all axes but the last together. */
    private static Tensor rows(Tensor tensor) {
        return tensor.view(-1, tensor.size(-1));
    }

    private static Tensor record(Tensor input, Tensor weight, NDManager manager) {
        Tensor x = input.view_as(input); // whose gradient is that of this product, no other one's
        Tensor w = weight.view_as(weight);
        Tensor left = x.narrow(-1, 0, 0);
        Tensor right = w.narrow(1, 0, 0).t();
        // libtorch fills what has no summands with zeros, in 1 % of the time of the product
        Tensor y = left.matmul(right);
        OneDnnLinear call =
                new OneDnnLinear(
                        rows(x.detach()).retainReference(),
                        w.detach().contiguous().retainReference(),
                        left.retainReference(),
                        right.retainReference());
        manager.attachInternal(UUID.randomUUID().toString(), call);
        OneDnnProduct.multiply(call.input, call.weight.t(), rows(y.detach()));
        call.hook(y, gradient -> call.keep(rows(gradient.contiguous())));
        if (x.requires_grad()) {
            call.hook(x, zeros -> OneDnnProduct.multiply(call.above, call.weight, rows(zeros)));
        }
        if (w.requires_grad()) {
            call.hook(w, zeros -> OneDnnProduct.multiplyTransposed(call.above, call.input, zeros));
        }
        return y;
    }

    private void hook(Tensor tensor, Consumer<Tensor> action) {
        Hook hook = new Hook(action);
        hooks.add(hook.retainReference()); // not freed with the scope of the caller
        tensor.register_hook(hook);
    }

    private void keep(Tensor gradient) {
        release(above);
        above = gradient.retainReference();
        wanted = hooks.size() - 1;
    }

    private static void release(Tensor tensor) {
        if (tensor != null) {
            tensor.close();
        }
    }

    /** Frees everything, unless a backward pass may follow. */
    @Override
    public void close() {
        synchronized (OUTLIVED) {
            OUTLIVED.add(this);
            OUTLIVED.removeIf(OneDnnLinear::closeIfFree);
        }
    }

    private boolean closeIfFree() {
        for (Tensor each : saved) {
            if (each.use_count() > 1) {
                return false;
            }
        }
        for (Tensor each : saved) {
            each.close();
        }
        release(above);
        above = null;
        input.close();
        weight.close();
        hooks.forEach(Hook::close);
        return true;
    }

    /** Looks at a gradient, or fills it. */
    private final class Hook extends VoidTensorHook {

        private final Consumer<Tensor> action;

        Hook(Consumer<Tensor> action) {
            this.action = action;
        }

        /** {@inheritDoc} */
        @Override
        public void call(TensorBase gradient) {
            try (TorchScope scope = TorchScope.withoutGraph();
                    gradient) { // this call owns it: not left to the collector
                action.accept(new Tensor(gradient));
                if (this != hooks.get(0) && --wanted == 0) {
                    release(above);
                    above = null;
                }
            }
        }
    }
}
