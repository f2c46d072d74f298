package io.djltp.testing;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;

import io.djltp.internal.torch.Autograd;

/** Gives layers known weights, and computes them without ranks. */
public final class Layers {

    private Layers() {}

    /**
     * Initializes a linear layer.
     *
     * @param layer the layer
     * @param manager the manager of its parameters
     * @param type the data type of its parameters
     * @param input the shape of its input
     * @param weight the weight
     * @param bias the bias, not used if the layer has none
     * @param <B> the type of the layer
     * @return the layer
     */
    public static <B extends Block> B initialize(
            B layer, NDManager manager, DataType type, Shape input, float[] weight, float[] bias) {
        layer.setInitializer(
                (m, shape, ignored) -> m.create(weight, shape).toType(type, false),
                Parameter.Type.WEIGHT);
        layer.setInitializer(
                (m, shape, ignored) -> m.create(bias, shape).toType(type, false),
                Parameter.Type.BIAS);
        layer.initialize(manager, type, input);
        return layer;
    }

    /**
     * Returns counted numbers.
     *
     * @param first the first
     * @param count how many
     * @return the numbers
     */
    public static float[] count(int first, int count) {
        float[] values = new float[count];
        for (int i = 0; i < count; i++) {
            values[i] = first + i;
        }
        return values;
    }

    /**
     * Computes a linear layer and its gradients with DJL's own.
     *
     * @param layer the layer, of which the parameters are used
     * @param input the input
     * @param gradient the gradient of the output
     * @return output, gradient of the input, of the weight, and of the bias if there is one
     */
    @SuppressWarnings("try") // a scope is used by being open
    public static NDList dense(Linear layer, NDArray input, NDArray gradient) {
        NDArray x = input.duplicate();
        NDArray weight = leaf(layer, "weight");
        NDArray bias = leaf(layer, "bias");
        x.setRequiresGradient(true);
        try (Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray output = Linear.linear(x, weight, bias).singletonOrThrow();
            Autograd.backward(output, gradient);
            NDList result = new NDList(output, Autograd.gradient(x), Autograd.gradient(weight));
            if (bias != null) {
                result.add(Autograd.gradient(bias));
            }
            return result;
        }
    }

    private static NDArray leaf(Linear layer, String name) {
        Parameter parameter = layer.getDirectParameters().get(name);
        if (parameter == null) {
            return null;
        }
        try (NDArray detached = parameter.getArray().stopGradient()) {
            NDArray leaf = detached.duplicate();
            leaf.setRequiresGradient(true);
            return leaf;
        }
    }
}
