package io.djltp.bridge;

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
 * PyTorch's Adam and AdamW as one pass over weight, gradient and state, where the same in single
 * operations takes seven. JavaCPP has no method for these operators: they are called by their
 * names.
 */
@SuppressWarnings("try") // a scope is used by being open
final class AdamKernel {

    private static final AdamKernel ADAM = new AdamKernel("aten::_fused_adam_");
    private static final AdamKernel ADAM_W = new AdamKernel("aten::_fused_adamw_");

    private final OperatorHandle operator;

    private AdamKernel(String name) {
        try (PointerScope scope = new PointerScope()) {
            operator = Dispatcher.singleton().findSchemaOrThrow(name, "").retainReference();
        }
    }

    /**
     * Returns the operator.
     *
     * @param decoupled whether weights decay apart from the gradient: AdamW
     */
    static AdamKernel of(boolean decoupled) {
        return decoupled ? ADAM_W : ADAM;
    }

    /**
     * What a step does to all rows.
     *
     * @param rate the learning rate, before it is corrected for the number of the step
     * @param beta1 the decay of the mean
     * @param beta2 the decay of the variance
     * @param decay the weight decay
     * @param epsilon what is added to the root of the corrected variance
     * @param number the number of the step, float32 [], by which mean and variance are corrected
     */
    record Step(
            double rate, double beta1, double beta2, double decay, double epsilon, Tensor number) {}

    /** Updates some rows of a weight and of its state in place: float32, each contiguous. */
    void apply(Tensor weight, Tensor gradient, Tensor mean, Tensor variance, Step step) {
        try (PointerScope scope = new PointerScope()) {
            IValueVector arguments = new IValueVector();
            push(arguments, weight, gradient, mean, variance);
            arguments.push_back(new IValue(list())); // largest variances: of AMSGrad
            push(arguments, step.number);
            push(arguments, step.rate, step.beta1, step.beta2, step.decay, step.epsilon);
            arguments.push_back(new IValue(false)); // AMSGrad
            arguments.push_back(new IValue(false)); // maximize
            arguments.push_back(new IValue()); // scale of the gradient
            arguments.push_back(new IValue()); // whether it is infinite
            operator.callBoxed(arguments);
        }
    }

    private static void push(IValueVector arguments, Tensor... tensors) {
        for (Tensor tensor : tensors) {
            GenericList list = list();
            list.push_back(new IValue(tensor));
            arguments.push_back(new IValue(list));
        }
    }

    private static void push(IValueVector arguments, double... numbers) {
        for (double number : numbers) {
            arguments.push_back(new IValue(number));
        }
    }

    private static GenericList list() {
        return new GenericList(new Type.TypePtr(TensorType.get()));
    }
}
