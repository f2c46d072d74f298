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

/**
 * PyTorch's updates of a weight as one pass over weight, gradient and state, where the same in
 * single operations takes up to seven. JavaCPP has no method for these operators: they are called
 * by their names. Weight, gradient and state are of one type, float32 or float64, and contiguous.
 */
@SuppressWarnings("try") // a scope is used by being open
final class FusedOperator {

    private static final FusedOperator SGD = new FusedOperator("aten::_fused_sgd_");
    private static final FusedOperator ADAM = new FusedOperator("aten::_fused_adam_");
    private static final FusedOperator ADAM_W = new FusedOperator("aten::_fused_adamw_");
    private static final FusedOperator ADAGRAD = new FusedOperator("aten::_fused_adagrad_");

    private final OperatorHandle operator;

    private FusedOperator(String name) {
        try (PointerScope scope = new PointerScope()) {
            operator = Dispatcher.singleton().findSchemaOrThrow(name, "").retainReference();
        }
    }

    /**
     * Updates by stochastic gradient descent as DJL does: {@code state = momentum * state + rate *
     * (gradient + decay * weight)}, {@code weight -= state}. PyTorch's state has no rate: here its
     * rate is 1, and the rate of the step its dampening.
     *
     * @param weight the weight, updated in place
     * @param gradient the gradient
     * @param state the state, updated in place, or {@code null} without momentum
     * @param rate the learning rate
     * @param momentum the momentum
     * @param decay the weight decay
     */
    static void sgd(
            Tensor weight,
            Tensor gradient,
            Tensor state,
            double rate,
            double momentum,
            double decay) {
        try (PointerScope scope = new PointerScope()) {
            IValueVector arguments = new IValueVector();
            push(arguments, weight, gradient);
            arguments.push_back(new IValue(state == null ? list() : list(state)));
            double ownRate = state == null ? rate : 1;
            double dampening = state == null ? 0 : 1 - rate;
            push(arguments, decay, momentum, ownRate, dampening);
            arguments.push_back(new IValue(false)); // Nesterov's momentum
            pushLast(arguments, false); // whether it is the first step, in which the state is unset
            SGD.operator.callBoxed(arguments);
        }
    }

    /**
     * What a step of Adam does to all rows.
     *
     * @param rate the learning rate, before it is corrected for the number of the step
     * @param beta1 the decay of the mean
     * @param beta2 the decay of the variance
     * @param decay the weight decay
     * @param epsilon what is added to the root of the corrected variance
     * @param number the number of the step, float32 [], by which mean and variance are corrected
     */
    record AdamStep(
            double rate, double beta1, double beta2, double decay, double epsilon, Tensor number) {}

    /**
     * Updates by Adam.
     *
     * @param weight the weight, updated in place
     * @param gradient the gradient
     * @param mean the mean of the gradients, updated in place
     * @param variance the mean of their squares, updated in place
     * @param step the step
     * @param decoupled whether weights decay apart from the gradient: AdamW
     */
    static void adam(
            Tensor weight,
            Tensor gradient,
            Tensor mean,
            Tensor variance,
            AdamStep step,
            boolean decoupled) {
        try (PointerScope scope = new PointerScope()) {
            IValueVector arguments = new IValueVector();
            push(arguments, weight, gradient, mean, variance);
            arguments.push_back(new IValue(list())); // largest variances: of AMSGrad
            push(arguments, step.number);
            push(arguments, step.rate, step.beta1, step.beta2, step.decay, step.epsilon);
            arguments.push_back(new IValue(false)); // AMSGrad
            pushLast(arguments);
            (decoupled ? ADAM_W : ADAM).operator.callBoxed(arguments);
        }
    }

    /**
     * Updates by Adagrad, on a processor.
     *
     * @param weight the weight, updated in place
     * @param gradient the gradient
     * @param sums the sums of the squared gradients, updated in place
     * @param number the number of the step, float32 []; without a decay of the rate it is not used
     * @param rate the learning rate
     * @param decay the weight decay
     * @param epsilon what is added to the root of the sum
     */
    static void adagrad(
            Tensor weight,
            Tensor gradient,
            Tensor sums,
            Tensor number,
            double rate,
            double decay,
            double epsilon) {
        try (PointerScope scope = new PointerScope()) {
            IValueVector arguments = new IValueVector();
            push(arguments, weight, gradient, sums, number);
            push(arguments, rate, 0, decay, epsilon); // 0: the rate does not decay
            pushLast(arguments);
            ADAGRAD.operator.callBoxed(arguments);
        }
    }

    private static void push(IValueVector arguments, Tensor... tensors) {
        for (Tensor tensor : tensors) {
            arguments.push_back(new IValue(list(tensor)));
        }
    }

    private static void push(IValueVector arguments, double... numbers) {
        for (double number : numbers) {
            arguments.push_back(new IValue(number));
        }
    }

    /** What all of them end with. */
    private static void pushLast(IValueVector arguments, boolean... flags) {
        arguments.push_back(new IValue(false)); // maximize
        for (boolean flag : flags) {
            arguments.push_back(new IValue(flag));
        }
        arguments.push_back(new IValue()); // scale of the gradient
        arguments.push_back(new IValue()); // whether it is infinite
    }

    private static GenericList list(Tensor... tensors) {
        GenericList list = new GenericList(new Type.TypePtr(TensorType.get()));
        for (Tensor tensor : tensors) {
            list.push_back(new IValue(tensor));
        }
        return list;
    }
}
