package io.djltp.exchange;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.Preconditions;

import io.djltp.exchange.NameMapping.NamePattern;
import io.djltp.exchange.WeightAssignment.Target;
import io.djltp.head.Margin;
import io.djltp.internal.Errors;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.parameters.ShapesOnly;

import org.jspecify.annotations.Nullable;

import java.io.Closeable;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Weights in safetensors files, for a block tree: DJL's blocks, ours, or both.
 *
 * <pre>{@code
 * try (PretrainedWeights weights =
 *         PretrainedWeights.builder()
 *                 .setPath(folder) // model.safetensors, or parts with their index
 *                 .setMapping(NameMapping.llama(32, 8))
 *                 .build()) {
 *     weights.bind(model, new Shape(1, 128)); // what does not fit is said here
 *     trainer.initialize(new Shape(1, 128)); // each rank reads its shards
 * }
 * }</pre>
 *
 * <p>{@link #bind} reads headers only. Whoever initializes the tree then reads the weights: a
 * {@link io.djltp.training.ParallelTrainer} or, with its first prediction, a {@link
 * io.djltp.training.ParallelPredictor} for each rank the bytes of its shards, so that a parameter
 * that is cut is never whole in memory; {@code block.initialize} or {@link #load} the whole.
 *
 * <p>Tensors are float32, float16, bfloat16 or float64, and are converted to the data type of the
 * model: the first three to float32 without loss, float64 rounded. Reading throws an {@link
 * java.io.UncheckedIOException} if the model's type cannot hold a number.
 */
public final class PretrainedWeights implements Closeable {

    private final WeightFiles files;
    private final NameMapping mapping;
    private final List<NamePattern> skippedParameters;
    private final List<NamePattern> skippedTensors;
    private final Map<Parameter, Initializer> before = new IdentityHashMap<>();

    private PretrainedWeights(Builder builder, NameMapping mapping, WeightFiles files) {
        this.files = files;
        this.mapping = mapping;
        skippedParameters = List.copyOf(builder.skippedParameters);
        skippedTensors = List.copyOf(builder.skippedTensors);
    }

    /**
     * Makes the files the initializers of a model's parameters. Values that parameters have are
     * dropped. A {@link io.djltp.training.ParallelTrainer} leaves these initializers alone; {@code
     * model.newTrainer(...)}, DJL's own, sets those of {@code DefaultTrainingConfig.optInitializer}
     * instead: use {@link #load} there.
     *
     * @param model the model, which no trainer is training
     * @param inputs the shapes of its inputs, by which it finds those of its parameters
     * @throws MalformedModelException if names or shapes do not fit, with the first ten, or a
     *     {@code config.json} beside the files scales rotary positions and the model does not, or
     *     does it otherwise; the model is then as it was
     * @throws IOException if a file cannot be read
     * @throws IllegalStateException if the model has no block, a {@code ParallelTrainer} is
     *     training it, or these weights are closed
     */
    public void bind(Model model, Shape... inputs) throws MalformedModelException, IOException {
        files.checkOpen();
        Block block = model.getBlock();
        if (block == null) {
            throw new IllegalStateException(
                    "The model "
                            + model.getName()
                            + " has no block to take the weights: call model.setBlock(...) before");
        }
        files.checkConfig(block);
        ParallelParameters.checkFree(block);
        Preconditions.checkArgument(
                model.getDataType() != DataType.BFLOAT16,
                "DJL makes no bfloat16 arrays: load the weights into a model of float32");
        Map<Parameter, Margin> margins = WeightFiles.margins(block);
        Map<String, Target> tree = new LinkedHashMap<>();
        Map<String, Parameter> paths = ParameterPaths.of(block);
        Runnable note = // of parameters that have the shapes
                () ->
                        paths.forEach(
                                (path, p) ->
                                        tree.put(
                                                path, new Target(p, p.getShape(), margins.get(p))));
        ShapesOnly.read(block, model.getDataType(), note, inputs);
        new WeightAssignment(files, mapping, tree)
                .find(skippedParameters, skippedTensors)
                .forEach(
                        (parameter, source) -> {
                            before.putIfAbsent(parameter, parameter.getInitializer());
                            if (parameter.isInitialized()) {
                                parameter.close();
                            }
                            parameter.setInitializer(source);
                        });
    }

    /**
     * Reads the weights into a model, whole.
     *
     * @param model the model, which no trainer is training
     * @param inputs the shapes of its inputs
     * @throws MalformedModelException if names or shapes do not fit, with the first ten
     * @throws IOException if a file cannot be read
     * @throws IllegalStateException if the model has no block, or a {@code ParallelTrainer} is
     *     training it
     */
    public void load(Model model, Shape... inputs) throws MalformedModelException, IOException {
        bind(model, inputs);
        model.getBlock().initialize(model.getNDManager(), model.getDataType(), inputs);
    }

    /**
     * Returns how many bytes of tensors were read so far, in this process.
     *
     * @return the number of bytes
     */
    public long getBytesRead() {
        return files.getBytesRead();
    }

    /**
     * Closes the files. A parameter that was not initialized by then cannot be any more.
     *
     * @throws IOException if a file cannot be closed
     */
    @Override
    public void close() throws IOException {
        before.forEach(
                (parameter, initializer) -> {
                    if (parameter.isInitialized()) {
                        parameter.setInitializer(initializer);
                    }
                });
        files.close();
    }

    /**
     * Creates a builder to build {@code PretrainedWeights}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct {@link PretrainedWeights}. */
    public static final class Builder {

        private @Nullable Path path;
        private @Nullable NameMapping mapping;
        private final List<NamePattern> skippedParameters = new ArrayList<>();
        private final List<NamePattern> skippedTensors = new ArrayList<>();

        private Builder() {}

        /**
         * Sets where the weights are.
         *
         * @param path a safetensors file, an index of several, or a folder with {@code
         *     model.safetensors} or {@code model.safetensors.index.json}
         * @return this builder
         */
        public Builder setPath(Path path) {
            this.path = path;
            return this;
        }

        /**
         * Sets which tensor is which parameter.
         *
         * @param mapping the mapping
         * @return this builder
         */
        public Builder setMapping(NameMapping mapping) {
            this.mapping = mapping;
            return this;
        }

        /**
         * Names parameters that keep their own values or initializer, such as those of a new head.
         * Tensors that the files have of them are not read, whatever their shape.
         *
         * @param paths patterns of their paths, such as <code>head.{path}</code>; each must be that
         *     of a parameter or more
         * @return this builder
         */
        public Builder optSkipParameters(String... paths) {
            Arrays.stream(paths).map(NamePattern::new).forEach(skippedParameters::add);
            return this;
        }

        /**
         * Names tensors for which the model needs to have no parameter, such as those of a head
         * that is replaced.
         *
         * @param names patterns of their names, such as <code>cls.{path}</code>
         * @return this builder
         */
        public Builder optSkipTensors(String... names) {
            Arrays.stream(names).map(NamePattern::new).forEach(skippedTensors::add);
            return this;
        }

        /**
         * Opens the files and reads their headers.
         *
         * @return the weights
         * @throws IOException if a file is missing, or is no safetensors file
         */
        public PretrainedWeights build() throws IOException {
            String needs = "PretrainedWeights need setPath and setMapping";
            NameMapping names = Errors.given(mapping, needs);
            WeightFiles files = WeightFiles.open(Errors.given(path, needs));
            return new PretrainedWeights(this, names, files);
        }
    }
}
