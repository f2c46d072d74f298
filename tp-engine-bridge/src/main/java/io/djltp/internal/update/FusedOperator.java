package io.djltp.internal.update;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Dispatcher;
import org.bytedeco.pytorch.GenericList;
import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.IValueVector;
import org.bytedeco.pytorch.OperatorHandle;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.TensorType;
import org.bytedeco.pytorch.Type;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.ArrayList;
import java.util.List;

/**
 * PyTorch's operators on lists: updates of weights, each as one pass over weight, gradient and
 * state, where the same in single operations takes up to seven, and copies. JavaCPP has no method
 * for them: they are called by their names. All tensors of an update are of one type, float32 or
 * float64, on one device and contiguous.
 */
@SuppressWarnings("try") // a scope is used by being open
final class FusedOperator {

    static final FusedOperator SGD = new FusedOperator("aten::_fused_sgd_", 3, 3, false);
    static final FusedOperator ADAM = new FusedOperator("aten::_fused_adam_", 5, 2, true);
    static final FusedOperator ADAM_W = new FusedOperator("aten::_fused_adamw_", 5, 2, true);

    /** For processors only. */
    static final FusedOperator ADAGRAD = new FusedOperator("aten::_fused_adagrad_", 3, 1, true);

    private static final FusedOperator COPY =
            new FusedOperator("aten::_foreach_copy_", 2, 1, false);

    private final OperatorHandle operator;
    private final int lists; // weights, gradients, and all that it may keep
    private final int flags; // truth values, all of them false, such as "maximize"
    private final boolean numbered; // whether it wants the number of the step, of each weight

    private FusedOperator(String name, int lists, int flags, boolean numbered) {
        try (PointerScope scope = new PointerScope()) {
            operator = Dispatcher.singleton().findSchemaOrThrow(name, "").retainReference();
        }
        this.lists = lists;
        this.flags = flags;
        this.numbered = numbered;
    }

    /**
     * Copies tensors.
     *
     * @param pairs where each goes, and what, of the same shape
     */
    static void copy(List<Tensor[]> pairs) {
        if (pairs.isEmpty()) {
            return;
        }
        try (PointerScope scope = new PointerScope()) {
            List<IValue[]> values = new ArrayList<>();
            for (Tensor[] pair : pairs) {
                values.add(new IValue[] {new IValue(pair[0]), new IValue(pair[1])});
            }
            COPY.call(0, List.of(), pairs.get(0)[0].options(), values);
        }
    }

    /**
     * Calls the operator, which changes weights and state in place.
     *
     * @param step the number of the step
     * @param numbers the numbers that it takes
     * @param options the device of the weights
     * @param weights of each weight itself, its gradient and its state
     */
    void call(int step, List<Double> numbers, TensorOptions options, List<IValue[]> weights) {
        try (PointerScope scope = new PointerScope()) {
            IValueVector arguments = new IValueVector();
            for (int i = 0; i < lists; i++) {
                GenericList list = newList();
                for (IValue[] weight : weights) {
                    if (i < weight.length) {
                        list.push_back(weight[i]);
                    }
                }
                arguments.push_back(new IValue(list));
            }
            if (numbered) {
                Tensor number =
                        torch.full(
                                new long[0],
                                new Scalar((float) step),
                                options.dtype(new ScalarTypeOptional(ScalarType.Float)));
                GenericList list = newList();
                list.resize(weights.size(), new IValue(number)); // they share it
                arguments.push_back(new IValue(list));
            }
            for (double number : numbers) {
                arguments.push_back(new IValue(number));
            }
            for (int i = 0; i < flags; i++) {
                arguments.push_back(new IValue(false));
            }
            if (this != COPY) {
                arguments.push_back(new IValue()); // scale of the gradient
                arguments.push_back(new IValue()); // whether it is infinite
            }
            operator.callBoxed(arguments);
        }
    }

    private static GenericList newList() {
        return new GenericList(new Type.TypePtr(TensorType.get()));
    }
}
