package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Activation;

import com.google.gson.JsonObject;

import io.djltp.internal.safetensors.SafetensorsFolder;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;

/**
 * A layer behind the pooling, which sentence-transformers saves in a folder of its own.
 *
 * @param weight the weight, [out, in]
 * @param bias the bias, [out], or {@code null}
 * @param activation the function of the outputs
 */
record Dense(NDArray weight, @Nullable NDArray bias, UnaryOperator<NDArray> activation) {

    private static final Map<String, UnaryOperator<NDArray>> ACTIVATIONS =
            Map.of(
                    "Tanh", Activation::tanh,
                    "Identity", x -> x,
                    "ReLU", Activation::relu,
                    "Sigmoid", Activation::sigmoid,
                    "GELU", Activation::gelu,
                    "SiLU", x -> Activation.swish(x, 1));

    /** Reads a folder. */
    static Dense read(Path folder, NDManager manager) throws IOException, MalformedModelException {
        JsonObject config = ConfigFields.parse(folder.resolve("config.json"), JsonObject.class);
        String function =
                config.has("activation_function")
                        ? config.get("activation_function").getAsString()
                        : "Tanh";
        var activation = ACTIVATIONS.get(function.substring(function.lastIndexOf('.') + 1));
        boolean behind =
                List.of("module_input_name", "module_output_name").stream()
                        .filter(config::has)
                        .map(name -> config.get(name).getAsString())
                        .allMatch("sentence_embedding"::equals);
        if (activation == null || !behind) {
            throw new MalformedModelException(
                    "%s has the layer %s; known are layers of a sentence_embedding with one of %s"
                            .formatted(folder, config, ACTIVATIONS.keySet()));
        }
        try (SafetensorsFolder files = SafetensorsFolder.open(folder)) {
            NDArray weight = read(files, "linear.weight", manager);
            for (int axis = 0; axis < 2; axis++) {
                String size = axis == 0 ? "out_features" : "in_features";
                long length = weight.getShape().get(axis);
                if (config.has(size) && config.get(size).getAsLong() != length) {
                    throw new MalformedModelException(
                            ("%s: %s is %s, and linear.weight beside it has %d: copy both files"
                                            + " of the model")
                                    .formatted(
                                            folder.resolve("config.json"),
                                            size,
                                            config.get(size),
                                            length));
                }
            }
            boolean hasBias = files.get("linear.bias") != null;
            return new Dense(
                    weight, hasBias ? read(files, "linear.bias", manager) : null, activation);
        }
    }

    private static NDArray read(SafetensorsFolder files, String name, NDManager manager)
            throws IOException {
        return files.fileOf(name).read(name, manager).toType(DataType.FLOAT32, false);
    }

    /** Returns the outputs of vectors, [B, in]. */
    NDArray apply(NDArray vectors) {
        NDArray y = vectors.matMul(weight.transpose());
        return activation.apply(bias == null ? y : y.add(bias));
    }
}
