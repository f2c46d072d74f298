package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.sun.jna.Function;
import com.sun.jna.Platform;

import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorchFunctions;
import io.djltp.internal.libtorch.ProcessorArithmetic;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorBase;
import org.bytedeco.pytorch.VoidTensorHook;
import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;
import java.util.function.Consumer;

/**
 * The product \(y = x W^T\) of a linear layer in float32, and the two of its backward pass, by
 * oneDNN, which libtorch brings along, in all threads of the calling one. Libtorch's own are MKL's,
 * which uses AVX-512 on processors of Intel only; on others that have it, oneDNN is faster.
 *
 * <p>Both add products of float32 in float32, but in another order: the bits differ, the bound of
 * the error is the same, \(k u / (1 - k u)\) times the product of the absolute values for sums of k
 * summands in any order, with \(u = 2^{-24}\). (Higham, Accuracy and Stability of Numerical
 * Algorithms, 2002, section 3.1.)
 *
 * <p>OneDNN compiles a kernel for each shape, which takes a millisecond and some 300 KiB. A batch
 * of any number of rows is therefore computed in parts of a power of two.
 *
 * <p>Autograd knows the layer as a product of no summands: of the first 0 features of x with those
 * of W, whose gradients cost nothing. Hooks put what it should be into the places: forward the
 * product, backward the gradients, into the zeros that autograd makes for the features that were
 * left out. So everything else is autograd's: which gradients are wanted, how they add up, and that
 * nobody has changed x or W since. {@link Autograd#nodesOf} shows the product without the detour.
 *
 * <p>An instance serves one call, and lives as long as the manager of its input, or the graph.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class OneDnnLinear implements AutoCloseable {

    /** Smaller products are faster by MKL, or as fast. */
    private static final long FEWEST_ROWS = 32;

    private static final long FEWEST_OPERATIONS = 1L << 25; // multiply and add
    private static final long FEWEST_OF_THREAD = 1L << 20; // in a single thread

    private static final String INTEL = "GenuineIntel";

    /** The system property that leaves all products to libtorch when it is {@code libtorch}. */
    private static final String PROPERTY = "io.djltp.products";

    /** Whose manager was closed before the graph. */
    private static final List<OneDnnLinear> OUTLIVED = new ArrayList<>();

    private final Tensor input; // [rows, in], outside the graph, as all that follow
    private final Tensor weight; // [out, in]
    private final Tensor[] saved; // what nobody has but the graph and this call
    private final List<Hook> hooks = new ArrayList<>();
    private int wanted; // gradients that have not been computed since that of y came
    private @Nullable Tensor above; // the gradient of y, until they are

    /** The function {@code at::native::mkldnn_matmul}, of addresses of tensors. */
    private static final class Direct {

        static final boolean IS_BOUND =
                !"libtorch".equals(System.getProperty(PROPERTY))
                        && hasFasterKernels()
                        && LibTorchFunctions.bind(
                                Direct.class, "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff");

        private Direct() {}

        /** Computes {@code target = alpha left right + beta target}. */
        static native void multiply(long left, long right, long target, float beta, float alpha);
    }

    private OneDnnLinear(Tensor input, Tensor weight, Tensor... saved) {
        this.input = input;
        this.weight = weight;
        this.saved = saved;
    }

    /** Returns whether oneDNN has kernels of AVX-512 here, and MKL does not use its own. */
    static boolean hasFasterKernels() {
        if (!Platform.isLinux()
                || !Platform.is64Bit()
                || processor().contains(INTEL)
                || ProcessorArithmetic.limit(System.getenv()).isPresent()) {
            return false;
        }
        Function avx512 = LibTorchFunctions.find("_ZN2at3cpu19is_avx512_supportedEv");
        return avx512 != null && (avx512.invokeInt(new Object[0]) & 0xff) != 0;
    }

    /** Returns what Linux says of the processor; if it says nothing, that it is one of Intel. */
    static String processor() {
        try {
            return Files.readString(Path.of("/proc/cpuinfo"));
        } catch (IOException e) {
            return INTEL; // as it would be without all this
        }
    }

    /**
     * Returns whether layers have large products from here.
     *
     * @return {@code false} if all are libtorch's own
     */
    public static boolean isUsed() {
        return Direct.IS_BOUND;
    }

    /**
     * Returns whether the product of a layer is faster here than libtorch's own.
     *
     * @param x the input
     * @param weight the weight
     */
    static boolean isFaster(NDArray x, NDArray weight) {
        if (!isUsed()
                || x.getDataType() != DataType.FLOAT32
                || weight.getDataType() != DataType.FLOAT32
                || x.getDevice().isGpu()
                || x.isSparse()) {
            return false;
        }
        Shape shape = x.getShape();
        long in = weight.getShape().get(1);
        long out = weight.getShape().get(0);
        int last = shape.dimension() - 1;
        // of a constant with more axes the graph keeps only a view that nobody else can ask about
        boolean known = last == 1 || !Autograd.isRecording() || TensorView.of(x).requiresGradient();
        return last > 0
                && known
                && in > 0
                && shape.get(last) == in
                && shape.size() / in >= FEWEST_ROWS
                && shape.size() * out >= FEWEST_OPERATIONS;
    }

    /**
     * Computes \(x W^T + b\).
     *
     * @param x the input, [.., in]
     * @param weight the weight W, [out, in]
     * @param bias the bias b, [out], or {@code null}
     * @return the output, [.., out], attached to the manager of the input
     */
    static NDArray of(NDArray x, NDArray weight, @Nullable NDArray bias) {
        return TorchScope.array(
                x.getManager(),
                () -> {
                    Tensor from = TensorView.of(x).tensor().contiguous();
                    Tensor w = TensorView.of(weight).tensor();
                    boolean recorded =
                            Autograd.isRecording() && (from.requires_grad() || w.requires_grad());
                    Tensor y = recorded ? record(from, w, x.getManager()) : compute(from, w);
                    return bias == null ? y : y.add_(TensorView.of(bias).tensor());
                });
    }

    private static Tensor compute(Tensor x, Tensor weight) {
        long[] shape = TensorView.of(x).getShape().getShape();
        shape[shape.length - 1] = weight.size(0);
        Tensor y = x.new_empty(shape);
        multiply(rows(x.detach()), weight.detach().contiguous().t(), rows(y));
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
        multiply(call.input, call.weight.t(), rows(y.detach()));
        call.hook(y, gradient -> call.keep(rows(gradient.contiguous())));
        if (x.requires_grad()) {
            call.hook(x, zeros -> multiply(call.above(), call.weight, rows(zeros)));
        }
        if (w.requires_grad()) {
            call.hook(w, zeros -> addTransposed(call.above(), call.input, zeros, false));
        }
        return y;
    }

    /**
     * Computes {@code target = left right}, a part of the rows after another.
     *
     * @param left the left factor, float32 [m, k], contiguous
     * @param right the right factor, float32 [k, n], contiguous or a transposed contiguous one
     * @param target where the product goes, float32 [m, n], contiguous
     */
    private static void multiply(Tensor left, Tensor right, Tensor target) {
        long rows = left.size(0);
        for (long done = 0, part; done < rows; done += part) {
            part = nextPart(rows - done);
            run(left.narrow(0, done, part), right, target.narrow(0, done, part), part, false);
        }
    }

    /**
     * Computes {@code target = left^T right}, or adds it, a part of the summands after another.
     *
     * @param left the left factor, float32 [k, m], contiguous
     * @param right the right factor, float32 [k, n], contiguous
     * @param target where the product goes, float32 [m, n], contiguous
     * @param add whether it is added to what is there
     */
    private static void addTransposed(Tensor left, Tensor right, Tensor target, boolean add) {
        long rows = left.size(0);
        for (long done = 0, part; done < rows; done += part) {
            part = nextPart(rows - done);
            boolean isAll = part == rows;
            Tensor from = (isAll ? left : left.narrow(0, done, part)).t();
            Tensor factor = isAll ? right : right.narrow(0, done, part);
            run(from, factor, target, part, add || done > 0);
        }
    }

    /**
     * Computes {@code target += left^T right} in the calling thread's threads, by oneDNN where that
     * is faster.
     *
     * @param left the left factor, float32 [k, m], contiguous
     * @param right the right factor, float32 [k, n], contiguous
     * @param target what is added to, float32 [m, n], contiguous
     */
    public static void addTransposed(Tensor left, Tensor right, Tensor target) {
        if (isUsed() && left.numel() * right.size(1) >= FEWEST_OF_THREAD) {
            addTransposed(left, right, target, true);
        } else {
            target.addmm_(left.t(), right);
        }
    }

    private static long nextPart(long rows) {
        return rows < FEWEST_ROWS ? rows : Long.highestOneBit(rows);
    }

    private static void run(Tensor left, Tensor right, Tensor target, long part, boolean add) {
        if (part < FEWEST_ROWS) {
            target.addmm_(left, right, new Scalar(add ? 1f : 0f), new Scalar(1f));
            return;
        }
        Direct.multiply(left.address(), right.address(), target.address(), add ? 1 : 0, 1);
    }

    private void hook(Tensor tensor, Consumer<Tensor> action) {
        Hook hook = new Hook(action);
        hooks.add(hook.retainReference()); // not freed with the scope of the caller
        tensor.register_hook(hook);
    }

    private void keep(Tensor gradient) {
        release();
        above = gradient.retainReference();
        wanted = hooks.size() - 1;
    }

    private Tensor above() {
        return Errors.present(above, "The gradient of the output has not come");
    }

    private void release() {
        if (above != null) {
            above.close();
            above = null;
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
        if (Arrays.stream(saved).anyMatch(each -> each.use_count() > 1)) {
            return false;
        }
        Arrays.stream(saved).forEach(Tensor::close);
        release();
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
                    release();
                }
            }
        }
    }
}
