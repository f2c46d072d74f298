package io.djltp.gradient;

import io.djltp.torch.AutogradGraph.Node;
import io.djltp.torch.OperationAxes;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Where the features of a slice lie in what an operation computes of it. An operation that computes
 * a feature from others, and one that is not known, leaves them nowhere.
 */
final class SliceRules {

    /** Over one axis or some, which keep their place. */
    private static final Set<String> ALONG =
            Set.of(
                    "Softmax",
                    "LogSoftmax",
                    "Cumsum",
                    "Cumprod",
                    "Logcumsumexp",
                    "Sort",
                    "Topk",
                    "Gather",
                    "Scatter",
                    "IndexSelect",
                    "Flip",
                    "Roll",
                    "Cat",
                    "Split",
                    "SplitWithSizes",
                    "Slice",
                    "NativeLayerNorm");

    /** Of these, what takes a part of an axis: it may be all of it. */
    private static final Set<String> TAKE = Set.of("Split", "SplitWithSizes", "Slice");

    /** To one axis or some of length 1, or to none. */
    private static final Set<String> REDUCE =
            Set.of(
                    "SumBackward1",
                    "MeanBackward1",
                    "MaxBackward0",
                    "MinBackward0",
                    "MedianBackward1",
                    "ProdBackward1",
                    "NormBackward1",
                    "AmaxBackward0",
                    "AminBackward0",
                    "LogsumexpBackward0",
                    "SelectBackward0");

    /** Of the last axes, as many as is said, each element is computed from all. */
    private static final Map<String, Integer> LAST_AXES =
            Map.ofEntries(
                    Map.entry("AvgPool2D", 2),
                    Map.entry("MaxPool2DWithIndices", 2),
                    Map.entry("AdaptiveAvgPool2D", 2),
                    Map.entry("AdaptiveMaxPool2D", 2),
                    Map.entry("AvgPool3D", 3),
                    Map.entry("MaxPool3DWithIndices", 3),
                    Map.entry("AdaptiveAvgPool3D", 3),
                    Map.entry("AdaptiveMaxPool3D", 3),
                    Map.entry("UpsampleNearest2D", 2),
                    Map.entry("UpsampleBilinear2D", 2),
                    Map.entry("Tril", 2),
                    Map.entry("Triu", 2),
                    Map.entry("ScaledDotProductFlashAttentionForCpu", 2),
                    Map.entry("ScaledDotProductEfficientAttention", 2),
                    Map.entry("ScaledDotProductFlashAttention", 2),
                    Map.entry("ScaledDotProductCudnnAttention", 2));

    /** Of all axes but the first. */
    private static final Set<String> ROWS = Set.of("Convolution", "NativeGroupNorm");

    private static final Set<String> RESHAPE =
            Set.of("View", "UnsafeView", "ReshapeAlias", "_ReshapeAlias", "Squeeze");

    private static final Set<String> PRODUCTS = Set.of("Mm", "Bmm");
    private static final Set<String> SUMS_OF_PRODUCTS = Set.of("Addmm", "Baddbmm");

    private SliceRules() {}

    /** Returns whether an operation sums products over an axis, as a linear layer does. */
    static boolean isProduct(String operation) {
        return PRODUCTS.contains(operation) || SUMS_OF_PRODUCTS.contains(operation);
    }

    /** Returns whether it is known what an operation does to the axes of its operands. */
    static boolean isKnown(Node node) {
        String name = node.operation();
        return Elementwise.contains(name)
                || RESHAPE.contains(name)
                || isProduct(name)
                || mixesLastAxes(name)
                || OperationAxes.isKnown(node.name())
                || Set.of("Expand", "Repeat", "T").contains(name);
    }

    /** Returns whether an operation computes each element from all of the last axes. */
    static boolean mixesLastAxes(String operation) {
        return LAST_AXES.containsKey(operation) || ROWS.contains(operation);
    }

    /**
     * Returns where the features may lie in the result of an operation.
     *
     * @param node the operation
     * @param operand the number of the operand that the features lie in
     * @param from the shape of the operand
     * @param place where they lie there
     * @return the places, none if a feature is computed from others
     */
    static List<SlicePlace> after(Node node, int operand, long[] from, SlicePlace place) {
        String name = node.operation();
        long[] to = node.shape();
        if (Elementwise.contains(name) || "Expand".equals(name) || "Repeat".equals(name)) {
            return place.broadcast(from, to);
        }
        if (RESHAPE.contains(name) && !"SqueezeBackward1".equals(node.name())) {
            return place.reshaped(from, to);
        }
        int axis = place.axis();
        if (SUMS_OF_PRODUCTS.contains(name) && operand == 0) {
            return place.broadcast(from, to); // the bias
        }
        if (isProduct(name)) {
            int left = SUMS_OF_PRODUCTS.contains(name) ? 1 : 0;
            boolean summed = axis == from.length - (operand == left ? 1 : 2);
            return summed ? List.of() : List.of(place);
        }
        if ("T".equals(name)) {
            return List.of(place.on(from.length == 2 ? 1 - axis : axis));
        }
        Integer last = ROWS.contains(name) ? Integer.valueOf(from.length - 1) : LAST_AXES.get(name);
        if (last != null) {
            boolean mixed = axis >= from.length - last || operand > (ROWS.contains(name) ? 0 : 2);
            return mixed ? List.of() : List.of(place);
        }
        int[] axes = OperationAxes.of(node, from.length);
        return axes == null ? List.of() : alongAxes(node, operand, from, place, axes);
    }

    /**
     * Returns where features lie that are a part of a slice's groups, such as the heads of queries
     * of stacked queries and keys. Features that are not divided to groups stay together.
     *
     * @param node the operation
     * @param from the shape of the operand
     * @param place where the features of all parts lie there
     * @return the place of those of the part, none if it is no part of that axis
     */
    static List<SlicePlace> partOf(Node node, long[] from, SlicePlace place) {
        long[] to = node.shape();
        boolean whole = place.outer() == 1 && place.inner() == 1 && place.unit() > 1;
        if (!"Slice".equals(node.operation()) || to.length != from.length || !whole) {
            return List.of();
        }
        int axis = place.axis();
        return List.of(new SlicePlace(axis, 1, to[axis], 1, place.unit()));
    }

    private static List<SlicePlace> alongAxes(
            Node node, int operand, long[] from, SlicePlace place, int[] axes) {
        String name = node.operation();
        long[] to = node.shape();
        int axis = place.axis();
        boolean over = Arrays.stream(axes).anyMatch(each -> each == axis);
        int before = (int) Arrays.stream(axes).filter(each -> each < axis).count();
        if (ALONG.contains(name)) {
            boolean mayBeAll = TAKE.contains(name);
            boolean first = operand == 0 || !"NativeLayerNorm".equals(name);
            boolean whole = to.length > axis && to[axis] == from[axis];
            return whole && first && (!over || mayBeAll) ? List.of(place) : List.of();
        }
        if (REDUCE.contains(node.name())) {
            int moved = to.length == from.length ? axis : axis - before;
            return over ? List.of() : List.of(place.on(moved));
        }
        switch (name) {
            case "Permute":
                return List.of(place.on(indexOf(axes, axis)));
            case "Transpose":
                int other = axes[0] == axis ? axes[1] : axes[1] == axis ? axes[0] : axis;
                return List.of(place.on(other));
            case "Stack":
            case "Unsqueeze":
                return List.of(place.on(axes[0] <= axis ? axis + 1 : axis));
            case "Squeeze":
                boolean gone = from[axes[0]] == 1;
                return gone && over ? List.of() : List.of(place.on(gone ? axis - before : axis));
            default:
                return List.of();
        }
    }

    private static int indexOf(int[] axes, int axis) {
        int index = 0;
        while (axes[index] != axis) {
            index++;
        }
        return index;
    }

    /** The operations of libtorch that compute each element from those of its own place. */
    private static final class Elementwise {

        private static final Set<String> ARITHMETIC =
                Set.of(
                        "Add",
                        "Sub",
                        "Rsub",
                        "Mul",
                        "Div",
                        "Neg",
                        "Addcmul",
                        "Addcdiv",
                        "Lerp",
                        "Remainder",
                        "Fmod",
                        "Maximum",
                        "Minimum",
                        "Fmax",
                        "Fmin",
                        "Where",
                        "MaskedFill",
                        "Clamp",
                        "ClampMin",
                        "ClampMax",
                        "Abs",
                        "Sign",
                        "Sgn",
                        "Floor",
                        "Ceil",
                        "Round",
                        "Trunc",
                        "Frac",
                        "Reciprocal",
                        "NanToNum",
                        "Clone",
                        "Copy",
                        "ToCopy",
                        "Alias",
                        "torch::autograd::CopyBackwards");

        private static final Set<String> FUNCTIONS =
                Set.of(
                        "Pow",
                        "Exp",
                        "Exp2",
                        "Expm1",
                        "Log",
                        "Log2",
                        "Log10",
                        "Log1P",
                        "Sqrt",
                        "Rsqrt",
                        "Sin",
                        "Cos",
                        "Tan",
                        "Asin",
                        "Acos",
                        "Atan",
                        "Sinh",
                        "Cosh",
                        "Tanh",
                        "Asinh",
                        "Acosh",
                        "Atanh",
                        "Atan2",
                        "Erf",
                        "Erfc",
                        "Erfinv",
                        "Lgamma",
                        "Digamma",
                        "Xlogy",
                        "Logaddexp",
                        "Logit",
                        "Hypot");

        private static final Set<String> ACTIVATIONS =
                Set.of(
                        "Sigmoid",
                        "LogSigmoid",
                        "LogSigmoidForward",
                        "Relu",
                        "LeakyRelu",
                        "Elu",
                        "Celu",
                        "Gelu",
                        "Silu",
                        "Mish",
                        "Softplus",
                        "Hardtanh",
                        "Hardsigmoid",
                        "Hardswish",
                        "Threshold",
                        "NativeDropout",
                        "FusedDropout");

        private Elementwise() {}

        /** Returns whether an operation is one of them. */
        static boolean contains(String operation) {
            return ARITHMETIC.contains(operation)
                    || FUNCTIONS.contains(operation)
                    || ACTIVATIONS.contains(operation);
        }
    }
}
