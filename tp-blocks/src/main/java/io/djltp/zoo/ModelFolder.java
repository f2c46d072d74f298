package io.djltp.zoo;

import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.nn.BlockFactory;
import ai.djl.translate.TranslatorFactory;
import ai.djl.util.Preconditions;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.WeightExport;
import io.djltp.internal.Errors;
import io.djltp.internal.files.SideFolder;

import org.jspecify.annotations.Nullable;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
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

    private final Block network;
    private final Map<String, String> properties;
    private final WeightExport weights;
    private final boolean overwrite;

    private ModelFolder(Builder builder, Block network) {
        this.network = network;
        properties = new TreeMap<>(builder.properties);
        weights = builder.weights.build();
        overwrite = builder.overwrite;
    }

    /**
     * Writes the folder. A model that is there is left as it is, unless {@code optOverwrite(true)}
     * lets it be replaced when the new files are complete.
     *
     * @param folder the folder, which is made if there is none; other files in it stay
     * @throws FileAlreadyExistsException if there is a model; nothing is written
     * @throws IOException if it cannot be written, or the data type of the weights does not hold a
     *     number of theirs
     * @throws IllegalStateException if a parameter has no values
     */
    public void save(Path folder) throws IOException {
        Files.createDirectories(folder);
        for (String name : List.of(WEIGHTS, PROPERTIES)) {
            if (!overwrite && Files.exists(folder.resolve(name))) {
                throw new FileAlreadyExistsException(
                        folder.resolve(name).toString(),
                        null,
                        "there is a model already, and nothing is written. Choose another folder,"
                                + " or let it be replaced with optOverwrite(true)");
            }
        }
        try (SideFolder side = SideFolder.in(folder)) {
            weights.write(network, side.getPath());
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
                    ("The weights of %s are in %s, and DJL would look for others in a .params"
                                    + " file: write %s=false into its %s")
                            .formatted(folder, WEIGHTS, HAS_PARAMETER, PROPERTIES));
        }
    }

    /** Writes the properties without the time that {@code Properties} puts before them. */
    private void writeProperties(Path file) throws IOException {
        Properties all = new Properties();
        all.putAll(properties);
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        all.store(bytes, null); // which escapes line ends, and letters that are not ISO 8859-1's
        String text = bytes.toString(StandardCharsets.ISO_8859_1);
        Files.write(file, text.lines().filter(line -> !line.startsWith("#")).sorted().toList());
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

        private @Nullable Block network;
        private final WeightExport.Builder weights =
                WeightExport.builder().setMapping(NameMapping.own()).optFileBytes(Long.MAX_VALUE);
        private final Map<String, String> properties = new TreeMap<>();
        private boolean overwrite;

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
         */
        public Builder optArgument(String name, String value) {
            properties.put(name, value);
            return this;
        }

        /**
         * Sets the degree of who does not ask for another, see {@link ParallelBlockFactory}.
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
            weights.optDataType(dataType);
            return this;
        }

        /**
         * Lets a model in the folder be replaced. Default: it is not, and nothing is written.
         *
         * @param overwrite whether it is replaced
         * @return this builder
         */
        public Builder optOverwrite(boolean overwrite) {
            this.overwrite = overwrite;
            return this;
        }

        /**
         * Builds the {@link ModelFolder}.
         *
         * @return the folder, to be saved
         * @throws IllegalArgumentException if there is no network or no block factory
         */
        public ModelFolder build() {
            String needs = "A model folder needs setNetwork(...) and setBlockFactory(...)";
            Preconditions.checkArgument(properties.containsKey("blockFactory"), needs);
            return new ModelFolder(this, Errors.given(network, needs));
        }
    }
}
