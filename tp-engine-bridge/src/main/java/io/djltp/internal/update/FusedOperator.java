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
import org.bytedeco.pytorch.TensorList;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.Arrays;
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

    /** Lists of tensors as arguments of an operator, which may be kept from call to call. */
    static final class Lists implements AutoCloseable {

        private final TensorList[] lists;

        /** Makes empty lists, which a scope frees unless they are kept. */
        Lists(FusedOperator operator) {
            lists = new TensorList[operator.lists + (operator.numbered ? 1 : 0)];
            Arrays.setAll(lists, i -> new TensorList());
        }

        /** Adds a tensor to a list: 0 is that of weights, 1 of gradients, then come states. */
        void add(int list, Tensor tensor) {
            lists[list].push_back(tensor);
        }

        /** Empties a list, so that its tensors are freed. */
        void clear(int list) {
            lists[list].clear();
        }

        /** Keeps the lists until they are closed. */
        Lists keep() {
            Arrays.stream(lists).forEach(TensorList::retainReference);
            return this;
        }

        @Override
        public void close() {
            Arrays.stream(lists).forEach(TensorList::close);
        }
    }

    /** Makes empty lists of copies: where each goes (0), and what (1), of the same shape. */
    static Lists copies() {
        return new Lists(COPY);
    }

    /** Copies tensors. */
    static void copy(Lists copies) {
        if (!copies.lists[0].empty()) {
            COPY.call(0, List.of(), copies);
        }
    }

    /**
     * Calls the operator, which changes weights and state in place.
     *
     * @param step the number of the step
     * @param numbers the numbers that it takes
     * @param weights the weights, their gradients and their state
     */
    void call(int step, List<Double> numbers, Lists weights) {
        try (PointerScope scope = new PointerScope()) {
            if (numbered) {
                setStep(weights, step);
            }
            IValueVector arguments = new IValueVector();
            for (TensorList list : weights.lists) {
                arguments.push_back(new IValue(new GenericList(list)));
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

    private static void setStep(Lists weights, int step) {
        TensorList steps = weights.lists[weights.lists.length - 1];
        Scalar number = new Scalar((float) step);
        if (steps.empty()) {
            TensorOptions options = weights.lists[0].get(0).options();
            options = options.dtype(new ScalarTypeOptional(ScalarType.Float));
            steps.resize(weights.lists[0].size(), torch.full(new long[0], number, options));
        } else {
            steps.get(0).fill_(number); // they share it
        }
    }
}
