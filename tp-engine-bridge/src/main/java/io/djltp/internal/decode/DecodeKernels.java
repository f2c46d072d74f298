package io.djltp.internal.decode;

import io.djltp.internal.decode.PackedWeight.Type;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.libtorch.ProcessorArithmetic;
import io.djltp.internal.torch.Brgemm;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Context;
import org.bytedeco.pytorch.Dispatcher;
import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.IValueVector;
import org.bytedeco.pytorch.OperatorHandle;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;

/**
 * The kernels of {@link PackedWeight}. Which one a type gets is decided once, by a small product
 * whose result is known: where a library is missing, or computes something else, it is the plain
 * one, and a warning says so.
 */
@SuppressWarnings("try") // a scope is used by being open
enum DecodeKernels {

    /** OneDNN's products of float32, in the calling thread. */
    ONEDNN_FLOAT32("oneDNN, float32", OneDnnFloat32::new),

    /** XNNPACK's products of float32, of packed weights that it reads from first to last. */
    XNNPACK("XNNPACK, float32", Xnnpack::new),

    /** FBGEMM's products of packed float16 weights and float32 rows. */
    FBGEMM_FLOAT16("FBGEMM, float16 weights, float32 rows", FbgemmFloat16::new),

    /** FBGEMM's products of 8 bits, of rows in two parts of 7 bits. */
    FBGEMM_INT8("FBGEMM, int8 weights, rows of 14 bits", FbgemmInt8::new),

    /** Libtorch's products of 4 bits with rows in bfloat16. */
    INT4_PACK("libtorch, int4 weights in groups of 32, bfloat16 rows", Int4::new),

    /** OneDNN's products of factors in bfloat16, with sums in float32. */
    ONEDNN_BFLOAT16("oneDNN, bfloat16 weights and rows, float32 sums", OneDnnBFloat16::new),

    /** The weight as it is, widened to float32 in blocks. */
    PLAIN("libtorch, ", given -> given.type() == Type.INT4 ? new Int4(given) : new Plain(given));

    private static final Logger logger = LoggerFactory.getLogger(DecodeKernels.class);

    private static final Map<Type, DecodeKernels> FOUND = new EnumMap<>(Type.class);

    private final String words;
    private final Function<PackedWeight.Given, PackedWeight> packer;

    DecodeKernels(String words, Function<PackedWeight.Given, PackedWeight> packer) {
        this.words = words;
        this.packer = packer;
    }

    /** Packs a weight. */
    PackedWeight pack(Type type, Tensor weight, float @Nullable [] bias, RowBuffer rows) {
        return packer.apply(new PackedWeight.Given(this, type, weight, bias, rows));
    }

    /** Names library and arithmetic. */
    String describe(Type type) {
        if (this != PLAIN) {
            return words;
        }
        return words + type.word() + (type == Type.FLOAT32 ? "" : " widened to float32");
    }

    /** Whether oneDNN multiplies float32 here. */
    private static final class OneDnnFound {

        private static final boolean IS =
                Brgemm.Direct.IS_BOUND && ONEDNN_FLOAT32.whyNot(Type.FLOAT32) == null;
    }

    /** Returns the kernel for weights of a type, in a rank with the threads of the calling one. */
    static synchronized DecodeKernels find(Type type) {
        LibTorch.load();
        if (type == Type.FLOAT32 && torch.get_num_threads() == 1 && OneDnnFound.IS) {
            return ONEDNN_FLOAT32;
        }
        return FOUND.computeIfAbsent(type, DecodeKernels::choose);
    }

    private static DecodeKernels choose(Type type) {
        DecodeKernels best =
                switch (type) {
                    case FLOAT32 -> XNNPACK;
                    case FLOAT16 -> FBGEMM_FLOAT16;
                    case INT8 -> FBGEMM_INT8;
                    case INT4 -> INT4_PACK;
                    case BFLOAT16 -> ONEDNN_BFLOAT16;
                };
        Optional<String> missing =
                best == ONEDNN_BFLOAT16
                        ? ProcessorArithmetic.whyNoBFloat16().map(reason -> "bfloat16 " + reason)
                        : Optional.empty();
        String why = missing.orElseGet(() -> best.whyNot(type));
        if (why == null) {
            return best;
        }
        logger.warn(
                "Products with {} weights are slow here: {} ({})",
                type.word(),
                PLAIN.describe(type),
                why);
        return PLAIN;
    }

    /** Tries a product, and returns why there is none, or null. */
    private @Nullable String whyNot(Type type) {
        LibTorch.load();
        float[] x = new float[3 * 16];
        float[] y = new float[3 * 24];
        try (TorchScope scope = TorchScope.withoutGraph();
                RowBuffer rows = new RowBuffer(PackedWeight.roomFor(3, 16))) {
            Tensor weight = torch.arange(new Scalar(24 * 16)).to(ScalarType.Float).reshape(24, 16);
            for (int i = 0; i < x.length; i++) {
                x[i] = i % 7 - 3;
            }
            try (PackedWeight packed = pack(type, weight, null, rows)) {
                packed.multiply(x, 3, y);
            }
        } catch (RuntimeException e) {
            return describe(type)
                    + ": "
                    + String.valueOf(e.getMessage()).lines().findFirst().orElse("");
        }
        for (int i = 0; i < 3; i++) {
            for (int j = 0; j < 24; j++) {
                double exact = 0;
                for (int k = 0; k < 16; k++) {
                    exact += (double) x[i * 16 + k] * (j * 16 + k);
                }
                if (!(Math.abs(y[i * 24 + j] - exact) < 150)) { // of sums of up to 18,000
                    return describe(type) + " computes " + y[i * 24 + j] + " instead of " + exact;
                }
            }
        }
        return null;
    }

    private static OperatorHandle operator(String name) {
        return Dispatcher.singleton().findSchemaOrThrow(name, "").retainReference();
    }

    /** Calls an operator that the preset does not bind. */
    private static IValue call(OperatorHandle operator, IValue... arguments) {
        IValueVector stack = new IValueVector(arguments);
        operator.callBoxed(stack);
        return stack.get(0);
    }

    /** A weight that an operator of libtorch has packed, and another one multiplies. */
    private abstract static class Prepacked extends PackedWeight {

        final IValue packed;
        private final OperatorHandle run;

        Prepacked(Given given, IValue packed, OperatorHandle run) {
            super(given);
            this.packed = keep(new IValue(packed));
            this.run = run;
        }

        @Override
        long bytes() {
            return getType().getBytes(getOutputs(), getInputs());
        }

        @Override
        Tensor product(Tensor x) {
            return call(run, new IValue(x), packed).toTensor();
        }
    }

    /**
     * Panels of outputs that lie side by side, [in, panel], which one row or many read from first
     * to last. Of any number of rows, a result is added up in the same order.
     */
    private static final class OneDnnFloat32 extends PackedWeight {

        private static final int PANEL = 32;
        private static final int MOST = 32; // rows of a call: a product is compiled for each number

        private final Tensor panels;
        private final long address;

        OneDnnFloat32(Given given) {
            super(given);
            Tensor weight = given.weight();
            long inputs = weight.size(1);
            long rest = weight.size(0) % PANEL;
            long whole = weight.size(0) - rest;
            Tensor first = weight.narrow(0, 0, whole).reshape(whole / PANEL, PANEL, inputs);
            Tensor last = weight.narrow(0, whole, rest);
            panels =
                    keep(
                            torch.cat(
                                    new TensorVector(
                                            first.transpose(1, 2).reshape(-1),
                                            last.t().reshape(-1)),
                                    0));
            address = panels.data_ptr().address();
        }

        @Override
        long bytes() {
            return panels.numel() * Float.BYTES;
        }

        @Override
        Tensor product(Tensor x) {
            Tensor y = torch.empty(x.size(0), getOutputs());
            multiply(x, address, PANEL, y, 0, getOutputs());
            return y;
        }

        /**
         * Multiplies rows by panels.
         *
         * @param x the rows, [count, in]
         * @param address where the panels are
         * @param width the outputs of a panel, but the last, which may have fewer
         * @param y where the results go, [count, outputs]
         * @param begin the first output
         * @param end the output behind the last
         */
        static void multiply(Tensor x, long address, long width, Tensor y, long begin, long end) {
            long count = x.size(0);
            long in = x.size(1);
            long out = y.size(1);
            long from = x.data_ptr().address();
            long to = y.data_ptr().address();
            for (long at = begin; at < end; at += width) {
                long panel = Math.min(width, end - at);
                long factor = address + Float.BYTES * (at - begin) * in;
                long rows;
                for (long row = 0; row < count; row += rows) {
                    rows = Math.min(MOST, count - row);
                    long a = from + Float.BYTES * row * in;
                    long c = to + Float.BYTES * (row * out + at);
                    Brgemm.Direct.multiply(
                            rows, panel, in, in, panel, out, false, a, factor, c, false);
                }
            }
        }
    }

    private static final class Xnnpack extends Prepacked {

        private static final OperatorHandle PACK = operator("prepacked::linear_clamp_prepack");
        private static final OperatorHandle RUN = operator("prepacked::linear_clamp_run");

        Xnnpack(Given given) {
            super(given, pack(given.weight()), RUN);
        }

        /** Packs a weight. What is packed keeps the original, too, unless a setting says not. */
        private static synchronized IValue pack(Tensor weight) {
            Context settings = torch.globalContext();
            boolean before = settings.releaseWeightsWhenPrepacking();
            settings.setReleaseWeightsWhenPrepacking(true);
            try {
                // a copy: with the setting, the original is emptied
                IValue own = new IValue(weight.clone());
                return call(PACK, own, new IValue(), new IValue(), new IValue());
            } finally {
                settings.setReleaseWeightsWhenPrepacking(before);
            }
        }
    }

    private static final class FbgemmFloat16 extends Prepacked {

        private static final OperatorHandle PACK = operator("quantized::linear_prepack_fp16");
        private static final OperatorHandle RUN = operator("quantized::linear_dynamic_fp16");

        FbgemmFloat16(Given given) {
            super(given, call(PACK, new IValue(given.weight()), new IValue()), RUN);
        }
    }

    /**
     * A row x becomes two of integers up to 63, of which FBGEMM, told of a scale of 1, computes the
     * products exactly: \(x = s (h + l / 126)\) with \(s = \max |x| / 63\). Both are multiplied in
     * one call, which reads the weight once.
     */
    private static final class FbgemmInt8 extends Prepacked {

        private static final OperatorHandle PACK = operator("quantized::linear_prepack");
        private static final OperatorHandle RUN =
                operator("quantized::linear_with_input_q_dq_qweight_dq_output_fp32");

        /** With 7 bits two products of 8 bits added up stay within 16, which AVX2 adds them in. */
        private static final float MOST = 63;

        private static final float PARTS = 126; // of a step of the first row

        private static final int FEW = 4; // rows, of which the parts are made here

        private final IValue one = keep(new IValue(1.0));
        private final IValue zero = keep(new IValue(64L));
        private float[] scales = {};

        FbgemmInt8(Given given) {
            super(given, pack(given.weight()), RUN);
        }

        private static IValue pack(Tensor weight) {
            Tensor scale = scalesOf(weight).to(ScalarType.Double);
            Tensor zeroPoints = torch.zeros(weight.size(0)).to(ScalarType.Long);
            Tensor rounded =
                    torch.quantize_per_channel(weight, scale, zeroPoints, 0, ScalarType.QInt8);
            return call(PACK, new IValue(rounded), new IValue());
        }

        @Override
        int rowsOf(int count) {
            return 2 * count;
        }

        @Override
        void put(RowBuffer to, float[] x, int count) {
            if (count > FEW) {
                super.put(to, x, count);
                return;
            }
            int in = getInputs();
            if (scales.length < count) {
                scales = new float[count];
            }
            int second = count * in;
            float[] parts = to.scratch(2 * second);
            for (int i = 0; i < count; i++) {
                int at = i * in;
                float most = 0;
                for (int j = at; j < at + in; j++) {
                    most = Math.max(most, Math.abs(x[j])); // NaN stays
                }
                scales[i] = most / MOST;
                float inverse = most > 0 ? MOST / most : most; // NaN stays
                for (int j = at; j < at + in; j++) {
                    float scaled = x[j] * inverse;
                    // rounds to the nearest as long as numbers are below 2^22
                    float whole = (scaled + 12582912f) - 12582912f;
                    parts[j] = whole;
                    parts[second + j] = (scaled - whole) * PARTS;
                }
            }
            to.memory().put(0, parts, 0, 2 * second);
        }

        @Override
        Tensor product(Tensor x) {
            int count = Math.toIntExact(x.size(0) / 2);
            if (count <= FEW) {
                return call(RUN, new IValue(x), one, zero, packed).toTensor();
            }
            // as put and take of few, bit by bit
            Tensor first = x.narrow(0, 0, count);
            Tensor second = x.narrow(0, count, count);
            Tensor most = first.abs().amax(new long[] {1}, true);
            Tensor inverse = torch.full(new long[] {1}, new Scalar(MOST)).div(most);
            inverse.masked_fill_(most.eq(new Scalar(0f)), new Scalar(0f));
            torch.mul_out(second, first, inverse);
            torch.round_out(first, second);
            second.sub_(first).mul_(new Scalar(PARTS));
            Tensor y = call(RUN, new IValue(x), one, zero, packed).toTensor();
            return y.narrow(0, 0, count)
                    .add_(y.narrow(0, count, count).mul_(new Scalar(1 / PARTS)))
                    .mul_(most.div_(new Scalar(MOST)));
        }

        @Override
        void take(RowBuffer from, Tensor product, float[] y, int count) {
            if (count > FEW) {
                super.take(from, product, y, count);
                return;
            }
            int out = getOutputs();
            int all = count * out;
            float[] parts = from.scratch(2 * all);
            RowBuffer.read(product, parts, 2 * all);
            for (int i = 0; i < count; i++) {
                float scale = scales[i];
                for (int j = i * out; j < (i + 1) * out; j++) {
                    y[j] = (parts[j] + parts[all + j] * (1 / PARTS)) * scale;
                }
            }
        }
    }

    /** Returns the scale of each row of a weight in 8 bits. */
    private static Tensor scalesOf(Tensor weight) {
        Tensor scales = weight.abs().amax(new long[] {1}, false).div_(new Scalar(127f));
        return scales.masked_fill_(scales.eq(new Scalar(0f)), new Scalar(1f));
    }

    /**
     * Numbers q of 4 bits in groups of inputs of a row, each with a scale s and an offset z: \(w =
     * (q - 8) s + z\), with the smallest and the largest number of a group as they are. Inputs are
     * filled up to whole groups, and outputs to whole panels.
     *
     * <p>Libtorch's kernel takes a row after another: more rows are multiplied by the weight
     * widened to float32, in blocks.
     */
    private static final class Int4 extends PackedWeight {

        private static final int GROUP = 32;
        private static final long FEW = 16; // rows

        private static final OperatorHandle RUN = operator("aten::_weight_int4pack_mm_for_cpu");

        /** Outputs that the kernel multiplies at once: 64 with AVX-512. */
        private static final int PANEL = findPanel();

        private final Tensor packed; // bytes [panels, in, PANEL / 2]
        private final Tensor factors; // bfloat16 [groups, out, 2]: scale and offset
        private final boolean few; // rows are multiplied by the kernel
        private final IValue[] constants;
        private float[] filled = {};

        Int4(Given given) {
            super(given);
            few = given.kernel() == INT4_PACK;
            Tensor full = fill(fill(given.weight(), 1, GROUP), 0, PANEL);
            Tensor groups = full.reshape(full.size(0), full.size(1) / GROUP, GROUP);
            Tensor least = groups.amin(new long[] {2}, false);
            Tensor scale = groups.amax(new long[] {2}, false).sub_(least).div_(new Scalar(15f));
            Tensor offset = least.add_(scale, new Scalar(8f)).to(ScalarType.BFloat16);
            scale = scale.to(ScalarType.BFloat16);
            factors = keep(torch.stack(new TensorVector(scale.t(), offset.t()), 2).contiguous());
            Tensor steps = scale.masked_fill(scale.eq(new Scalar(0f)), new Scalar(1f));
            Tensor q =
                    groups.sub(offset.to(ScalarType.Float).unsqueeze(2))
                            .div_(steps.to(ScalarType.Float).unsqueeze(2))
                            .round_()
                            .add_(new Scalar(8f))
                            .clamp_(
                                    new ScalarOptional(new Scalar(0f)),
                                    new ScalarOptional(new Scalar(15f)));
            packed = keep(pack(q.reshape(full.size(0), full.size(1)), PANEL));
            long[] shape = {full.size(0), full.size(1) / 2};
            constants =
                    new IValue[] {
                        keep(new IValue(packed.view(shape))),
                        keep(new IValue((long) GROUP)),
                        keep(new IValue(factors))
                    };
        }

        /** Repeats the last number, which widens no group. */
        private static Tensor fill(Tensor x, long axis, int whole) {
            long size = x.size(axis);
            long more = (size + whole - 1) / whole * whole - size;
            long[] shape = {axis == 0 ? more : x.size(0), axis == 0 ? x.size(1) : more};
            Tensor last = x.narrow(axis, size - 1, 1).expand(shape);
            return more == 0 ? x : torch.cat(new TensorVector(x, last), axis);
        }

        /** Arranges numbers [out, in] as the kernel reads them: two outputs in a byte. */
        private static Tensor pack(Tensor numbers, int panel) {
            Tensor panels = numbers.reshape(numbers.size(0) / panel, panel, numbers.size(1));
            Tensor low = panels.narrow(1, 0, panel / 2);
            Tensor high = panels.narrow(1, panel / 2, panel / 2);
            return low.add(high, new Scalar(16f)).to(ScalarType.Byte).transpose(1, 2).contiguous();
        }

        private static int findPanel() {
            try (PointerScope scope = new PointerScope()) {
                Tensor numbers = torch.arange(new Scalar(64 * 2)).remainder(new Scalar(15f));
                numbers = numbers.reshape(64, 2).to(ScalarType.Float);
                OperatorHandle pack = operator("aten::_convert_weight_to_int4pack_for_cpu");
                IValue whole = new IValue(numbers.to(ScalarType.Int));
                Tensor expected = call(pack, whole, new IValue(1L)).toTensor().reshape(-1);
                return expected.equal(pack(numbers, 64).reshape(-1)) ? 64 : 32;
            }
        }

        @Override
        long bytes() {
            return packed.numel() + factors.numel() * 2;
        }

        @Override
        int columnsOf(int inputs) {
            return (inputs + GROUP - 1) / GROUP * GROUP;
        }

        @Override
        void put(RowBuffer to, float[] x, int count) {
            int in = getInputs();
            int columns = columnsOf(in);
            if (in == columns) {
                super.put(to, x, count);
                return;
            }
            if (filled.length < count * columns) {
                filled = new float[count * columns]; // zeros between the rows
            }
            for (int i = 0; i < count; i++) {
                System.arraycopy(x, i * in, filled, i * columns, in);
            }
            to.memory().put(0, filled, 0, count * columns);
        }

        @Override
        Tensor product(Tensor x) {
            Tensor y = few && x.size(0) <= FEW ? ofFew(x) : ofMany(x);
            return y.narrow(1, 0, getOutputs()).contiguous();
        }

        private Tensor ofFew(Tensor x) {
            IValue rounded = new IValue(x.to(ScalarType.BFloat16));
            IValue y = call(RUN, rounded, constants[0], constants[1], constants[2]);
            return y.toTensor().to(ScalarType.Float);
        }

        private Tensor ofMany(Tensor x) {
            long in = packed.size(1);
            long most = Math.max(1, Plain.BLOCK / (in * PANEL)); // panels
            Tensor y = torch.empty(x.size(0), packed.size(0) * PANEL);
            for (long at = 0; at < packed.size(0); at += most) {
                try (PointerScope scope = new PointerScope()) {
                    long count = Math.min(most, packed.size(0) - at);
                    Tensor bytes = packed.narrow(0, at, count);
                    Tensor wide = torch.empty(count, in, 2, PANEL / 2);
                    wide.select(2, 0).copy_(bytes.bitwise_and(new Scalar(15)));
                    wide.select(2, 1).copy_(torch.bitwise_right_shift(bytes, new Scalar(4)));
                    long begin = at * PANEL;
                    Tensor scales = // and offsets, [panels, groups, 1, PANEL, 2]
                            factors.narrow(1, begin, count * PANEL)
                                    .to(ScalarType.Float)
                                    .view(in / GROUP, count, 1, PANEL, 2)
                                    .transpose(0, 1);
                    Tensor scale = scales.select(4, 0).contiguous();
                    Tensor offset = scales.select(4, 1).sub(scale, new Scalar(8f));
                    Tensor groups = wide.view(count, in / GROUP, GROUP, PANEL);
                    torch.addcmul_out(groups, offset, groups, scale);
                    Tensor panels = groups.view(count, in, PANEL);
                    if (find(Type.FLOAT32) == ONEDNN_FLOAT32) {
                        OneDnnFloat32.multiply(
                                x,
                                panels.data_ptr().address(),
                                PANEL,
                                y,
                                begin,
                                begin + count * PANEL);
                    } else {
                        y.narrow(1, begin, count * PANEL)
                                .view(x.size(0), count, PANEL)
                                .copy_(torch.matmul(x, panels).transpose(0, 1));
                    }
                }
            }
            return y;
        }
    }

    private static final class OneDnnBFloat16 extends PackedWeight {

        /** Outputs of a call: more are not faster for one row, and slower for many. */
        private static final long COLUMNS = 512;

        private final List<Tensor> panels = new ArrayList<>();
        private final long even; // inputs, which are multiplied in pairs

        OneDnnBFloat16(Given given) {
            super(given);
            Tensor weight = given.weight();
            long outputs = weight.size(0);
            long inputs = weight.size(1);
            even = inputs + inputs % 2;
            for (long at = 0; at < outputs; at += COLUMNS) {
                try (PointerScope scope = new PointerScope()) {
                    Tensor part = weight.narrow(0, at, Math.min(COLUMNS, outputs - at)).t();
                    if (even > inputs) {
                        part = torch.cat(new TensorVector(part, torch.zeros(1, part.size(1))), 0);
                    }
                    panels.add(keep(Brgemm.pack(part)));
                }
            }
        }

        @Override
        long bytes() {
            return getOutputs() * even * 2;
        }

        @Override
        Tensor product(Tensor x) {
            long count = x.size(0);
            Tensor rounded = x.to(ScalarType.BFloat16);
            if (even > getInputs()) {
                Tensor zeros = torch.zeros(count, 1).to(ScalarType.BFloat16);
                rounded = torch.cat(new TensorVector(rounded, zeros), 1);
            }
            Tensor y = torch.empty(count, getOutputs());
            for (int i = 0; i < panels.size(); i++) {
                Tensor panel = panels.get(i);
                Tensor part = y.narrow(1, i * COLUMNS, panel.size(1));
                Brgemm.multiplyPacked(rounded, panel, part, false, true);
            }
            Brgemm.release();
            return y;
        }
    }

    private static final class Plain extends PackedWeight {

        private static final long BLOCK = 1 << 18; // numbers: 1 MiB of float32

        private final Tensor weight;
        private final @Nullable Tensor scales;

        Plain(Given given) {
            super(given);
            if (given.type() == Type.INT8) {
                scales = keep(scalesOf(given.weight()));
                Tensor steps = given.weight().div(scales.unsqueeze(1)).round_();
                weight = keep(steps.to(ScalarType.Char));
            } else {
                scales = null;
                // not the caller's memory
                Tensor own = given.weight().to(given.type().scalarType());
                weight = keep(given.type() == Type.FLOAT32 ? own.clone() : own);
            }
        }

        @Override
        long bytes() {
            return weight.nbytes() + (scales == null ? 0 : scales.nbytes());
        }

        @Override
        Tensor product(Tensor x) {
            if (getType() == Type.FLOAT32) {
                return torch.linear(x, weight);
            }
            long outputs = getOutputs();
            long step = Math.max(1, BLOCK / Math.max(1, getInputs()));
            Tensor y = torch.empty(x.size(0), outputs);
            for (long at = 0; at < outputs; at += step) {
                try (PointerScope scope = new PointerScope()) {
                    long count = Math.min(step, outputs - at);
                    Tensor part = weight.narrow(0, at, count).to(ScalarType.Float);
                    torch.mm_out(y.narrow(1, at, count), x, part.t());
                }
            }
            return scales == null ? y : y.mul_(scales);
        }
    }
}
