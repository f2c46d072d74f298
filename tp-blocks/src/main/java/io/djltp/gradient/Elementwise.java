package io.djltp.gradient;

import java.util.Set;

/** The operations of libtorch that compute each element from those of its own place. */
final class Elementwise {

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
