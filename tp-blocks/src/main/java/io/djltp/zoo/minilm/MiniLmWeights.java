package io.djltp.zoo.minilm;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import java.io.IOException;
import java.io.InputStream;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Gives the parameters of a {@link MiniLm} the values that the pretrained model has. */
public final class MiniLmWeights {

    /** DJL counts the children of a block in their names: 07layer5_01attention_02key_weight. */
    private static final Pattern COUNT = Pattern.compile("(?<=^|_)\\d\\d(?=\\D)");

    private static final Pattern LAYER = Pattern.compile("layer(\\d+)_(.+)_(\\w+)");

    private static final Map<String, String> EMBEDDINGS =
            Map.of(
                    "embeddings_words_embedding", "embeddings.word_embeddings.weight",
                    "embeddings_positions", "embeddings.position_embeddings.weight",
                    "embeddings_kinds", "embeddings.token_type_embeddings.weight",
                    "embeddings_norm_gamma", "embeddings.LayerNorm.weight",
                    "embeddings_norm_beta", "embeddings.LayerNorm.bias");

    private static final Map<String, String> LAYERS =
            Map.of(
                    "attention_query", "attention.self.query",
                    "attention_key", "attention.self.key",
                    "attention_value", "attention.self.value",
                    "attention_output", "attention.output.dense",
                    "attentionNorm", "attention.output.LayerNorm",
                    "mlp_up", "intermediate.dense",
                    "mlp_down", "output.dense",
                    "mlpNorm", "output.LayerNorm");

    private static final Map<String, String> PARAMETERS =
            Map.of("weight", "weight", "bias", "bias", "gamma", "weight", "beta", "bias");

    private MiniLmWeights() {}

    /**
     * Initializes a network with the values of the pretrained model.
     *
     * @param network the network
     * @param manager the manager of the values
     * @throws IOException if the file cannot be read
     */
    public static void load(MiniLm network, NDManager manager) throws IOException {
        try (InputStream file = MiniLmFiles.model()) {
            OnnxWeights weights = OnnxWeights.read(file);
            for (Pair<String, Parameter> named : network.getParameters()) {
                String name = nameOf(named.getKey());
                named.getValue().setInitializer((of, shape, type) -> weights.get(of, name, shape));
            }
            initialize(network, manager);
        }
    }

    private static void initialize(Block network, NDManager manager) {
        Shape tokens = new Shape(1, 1);
        network.initialize(manager, DataType.FLOAT32, tokens, tokens);
    }

    /** Returns the name that a parameter has in Hugging Face's model. */
    static String nameOf(String parameter) {
        String path = COUNT.matcher(parameter).replaceAll("");
        Matcher layer = LAYER.matcher(path);
        if (!layer.matches()) {
            return EMBEDDINGS.get(path);
        }
        return "encoder.layer."
                + layer.group(1)
                + "."
                + LAYERS.get(layer.group(2))
                + "."
                + PARAMETERS.get(layer.group(3));
    }
}
