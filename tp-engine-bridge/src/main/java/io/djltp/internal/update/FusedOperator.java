package io.djltp.internal.update;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Dispatcher;
import org.bytedeco.pytorch.GenericList;
import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.IValueVector;
import org.bytedeco.pytorch.OperatorHandle;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorType;
import org.bytedeco.pytorch.Type;
import org.jspecify.annotations.Nullable;

/**
 * PyTorch's updates of a weight as one pass over weight, gradient and state, where the same in
 * single operations takes up to seven. JavaCPP has no method for these operators: they are called
 * by their names. Weight, gradient and state are of one type, float32 or float64, and contiguous.
 */
@SuppressWarnings("try") // a scope is used by being open
final class FusedOperator {

    static final FusedOperator SGD = new FusedOperator("aten::_fused_sgd_");
    static final FusedOperator ADAM = new FusedOperator("aten::_fused_adam_");
    static final FusedOperator ADAM_W = new FusedOperator("aten::_fused_adamw_");

    /** For processors only. */
    static final FusedOperator ADAGRAD = new FusedOperator("aten::_fused_adagrad_");

    private final OperatorHandle operator;

    private FusedOperator(String name) {
        try (PointerScope scope = new PointerScope()) {
            operator = Dispatcher.singleton().findSchemaOrThrow(name, "").retainReference();
        }
    }

    /**
     * Calls the operator, which changes weight and state in place.
     *
     * @param flags how many truth values it takes, all of them false: of variants of the rule, and
     *     whether it maximizes
     * @param numbers the numbers that it takes before
     * @param tensors weight, gradient and state, which it takes first, as lists of one; or {@code
     *     null} for none
     */
    void call(int flags, double[] numbers, @Nullable Tensor... tensors) {
        try (PointerScope scope = new PointerScope()) {
            IValueVector arguments = new IValueVector();
            for (Tensor tensor : tensors) {
                GenericList list = new GenericList(new Type.TypePtr(TensorType.get()));
                if (tensor != null) {
                    list.push_back(new IValue(tensor));
                }
                arguments.push_back(new IValue(list));
            }
            for (double number : numbers) {
                arguments.push_back(new IValue(number));
            }
            for (int i = 0; i < flags; i++) {
                arguments.push_back(new IValue(false));
            }
            arguments.push_back(new IValue()); // scale of the gradient
            arguments.push_back(new IValue()); // whether it is infinite
            operator.callBoxed(arguments);
        }
    }
}
