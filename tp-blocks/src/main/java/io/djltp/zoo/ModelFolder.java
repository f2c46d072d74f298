package io.djltp.zoo;

import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.nn.BlockFactory;
import ai.djl.nn.Parameter;
import ai.djl.translate.TranslatorFactory;
import ai.djl.util.Pair;
import ai.djl.util.Preconditions;

import io.djltp.exchange.WeightExport;
import io.djltp.files.SideFolder;
import io.djltp.parameters.HeldParameters;

import java.io.BufferedWriter;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;

/**
 * A folder with a model as DJL and DJL Serving load it, over any number of ranks: the weights in
 * {@value #WEIGHTS}, from which each rank reads its shards, and {@value #PROPERTIES}, which names
 * the factories of block and translator.
 *
 * <pre>{@code
 * ModelFolder.builder()
 *         .setNetwork(model.getBlock())
 *         .setBlockFactory(MyBlockFactory.class)
 *         .optTranslatorFactory(MyTranslatorFactory.class)
 *         .optArgument("classes", "1000")
 *         .build()
 *         .save(folder);
 * }</pre>
 */
public final class ModelFolder {

    /** The name of the file with the weights, as Hugging Face has it. */
    public static final String WEIGHTS = "model.safetensors";

    /** The name of the file with arguments and options. */
    public static final String PROPERTIES = "serving.properties";

    private static final String HAS_PARAMETER = "option.hasParameter";

    private static final Set<String> OWN = Set.of("engine", "blockFactory", "translatorFactory");

    private final Map<String, Parameter> parameters;
    private final Map<String, String> properties;
    private final DataType dataType;

    private ModelFolder(Builder builder) {
        parameters = new LinkedHashMap<>();
        properties = new TreeMap<>(builder.properties);
        dataType = builder.dataType;
        Set<Parameter> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        for (Pair<String, Parameter> named : builder.network.getParameters()) {
            if (seen.add(named.getValue())) { // blocks may share one
                parameters.put(named.getKey(), named.getValue());
            }
        }
    }

    /**
     * Writes the folder. Files of the same names are replaced when the new ones are complete.
     *
     * @param folder the folder, which is made if there is none; other files in it stay
     * @throws IOException if it cannot be written, or the data type of the weights does not hold a
     *     number of theirs
     * @throws IllegalStateException if a parameter has no values, or ranks are training it
     */
    public void save(Path folder) throws IOException {
        for (Map.Entry<String, Parameter> named : parameters.entrySet()) {
            if (!named.getValue().isInitialized()) {
                throw new IllegalStateException(
                        "The parameter "
                                + named.getKey()
                                + " has no value to be saved: train or load the model first");
            }
            HeldParameters.checkWhole(named.getValue(), "A model folder");
        }
        Files.createDirectories(folder);
        try (SideFolder side = SideFolder.in(folder)) {
            WeightExport.writeFile(parameters, dataType, side.resolve(WEIGHTS));
            writeProperties(side.resolve(PROPERTIES));
            side.replace(PROPERTIES);
        }
    }

    /** Returns the properties of a folder, none if it has no file of them. */
    static Properties properties(Path folder) throws IOException {
        Properties properties = new Properties();
        Path file = folder.resolve(PROPERTIES);
        if (Files.isRegularFile(file)) {
            try (Reader reader = Files.newBufferedReader(file)) {
                properties.load(reader);
            }
        }
        return properties;
    }

    /**
     * Checks that DJL takes no file of its own format, with other weights: it would do so after the
     * factory has made the block, and fail if there is none, when ranks have started.
     */
    static void checkNoOtherWeights(Path folder) throws IOException {
        String option = properties(folder).getProperty(HAS_PARAMETER);
        if (option == null || Boolean.parseBoolean(option)) {
            throw new IOException(
                    "The weights of "
                            + folder
                            + " are in "
                            + WEIGHTS
                            + ", and DJL would look for others in a .params file: write "
                            + HAS_PARAMETER
                            + "=false into its "
                            + PROPERTIES);
        }
    }

    private void writeProperties(Path file) throws IOException {
        try (BufferedWriter writer = Files.newBufferedWriter(file)) {
            for (Map.Entry<String, String> property : properties.entrySet()) {
                writer.write(line(property) + "\n");
            }
        }
    }

    /** A property as {@code Properties} reads it: backslashes, lines and letters are escaped. */
    private static String line(Map.Entry<String, String> property) throws IOException {
        Properties one = new Properties();
        one.setProperty(property.getKey(), property.getValue());
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        one.store(bytes, null);
        String[] lines = bytes.toString(StandardCharsets.ISO_8859_1).split("\\R");
        return lines[lines.length - 1]; // before it is a comment with the time
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder of a {@link ModelFolder}. */
    public static final class Builder {

        private Block network;
        private DataType dataType;
        private final Map<String, String> properties = new TreeMap<>();

        private Builder() {
            properties.put("engine", "PyTorch");
            properties.put(HAS_PARAMETER, "false"); // no file of DJL's format
        }

        /**
         * Sets the network, with values.
         *
         * @param network the network
         * @return this builder
         */
        public Builder setNetwork(Block network) {
            this.network = network;
            return this;
        }

        /**
         * Sets what makes the network again.
         *
         * @param factory the class, a {@link ParallelBlockFactory}
         * @return this builder
         */
        public Builder setBlockFactory(Class<? extends BlockFactory> factory) {
            properties.put("blockFactory", factory.getName());
            return this;
        }

        /**
         * Sets what makes the translator.
         *
         * @param factory the class
         * @return this builder
         */
        public Builder optTranslatorFactory(Class<? extends TranslatorFactory> factory) {
            properties.put("translatorFactory", factory.getName());
            return this;
        }

        /**
         * Adds an argument for the factories.
         *
         * @param name its name
         * @param value its value
         * @return this builder
         * @throws IllegalArgumentException if it is a name that the folder uses itself
         */
        public Builder optArgument(String name, String value) {
            Preconditions.checkArgument(
                    !OWN.contains(name) && !name.startsWith("option."),
                    "The name "
                            + name
                            + " is one of the folder's own, which setBlockFactory(...),"
                            + " optTranslatorFactory(...) and optDegree(...) set: give the argument"
                            + " another one");
            properties.put(name, value);
            return this;
        }

        /**
         * Sets the degree of who does not ask for another, see {@link TensorParallelDegree}.
         *
         * @param degree a number, or max
         * @return this builder
         * @throws IllegalArgumentException if it is neither a number from 1 on nor max. What the
         *     network can be cut over is seen when it is loaded: the block factory makes it
         */
        public Builder optDegree(String degree) {
            TensorParallelDegree.check(degree);
            properties.put("option." + TensorParallelDegree.NAME, degree);
            return this;
        }

        /**
         * Sets the data type of the weights in the file, from which they are converted back when
         * they are loaded. Default: what they are.
         *
         * @param dataType a floating type, such as {@code FLOAT16} for half the size
         * @return this builder
         * @throws IllegalArgumentException if it is none
         */
        public Builder optDataType(DataType dataType) {
            Preconditions.checkArgument(
                    dataType != null && dataType.isFloating(),
                    "Weights are written as floating point numbers, not " + dataType);
            this.dataType = dataType;
            return this;
        }

        /**
         * Builds the {@link ModelFolder}.
         *
         * @return the folder, to be saved
         * @throws IllegalArgumentException if there is no network or no block factory
         */
        public ModelFolder build() {
            if (network == null || !properties.containsKey("blockFactory")) {
                throw new IllegalArgumentException(
                        "A model folder needs setNetwork(...) and setBlockFactory(...)");
            }
            return new ModelFolder(this);
        }
    }
}
