package io.djltp.classes;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.translate.ArgumentsUtil;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import ai.djl.util.Pair;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.OnnxExport;
import io.djltp.exchange.PretrainedWeights;
import io.djltp.head.TopClasses;
import io.djltp.internal.Errors;
import io.djltp.internal.files.SideFolder;
import io.djltp.internal.optimizer.HeadRates;
import io.djltp.loss.OneVsAllLoss;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.loss.VocabParallelRanking;
import io.djltp.loss.VocabParallelTopK;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelConfig;
import io.djltp.search.ClassSearch;
import io.djltp.training.ParallelTrainer;
import io.djltp.zoo.ModelFolder;
import io.djltp.zoo.ParallelBlockFactory;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Type;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.DoubleSupplier;
import java.util.function.Function;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/**
 * A classifier for the classes of a file: trained, saved in a folder, loaded and asked.
 *
 * <pre>{@code
 * ClassData data = ClassData.builder(Path.of("titles.tsv")).build();
 * try (ClassModel model = ClassModel.builder(data).build()) {
 *     try (Trainer trainer = model.newTrainer(ParallelConfig.mixed(2))) {
 *         EasyTrain.fit(trainer, 5, data.newDataset(512, true, 1), null);
 *     }
 *     model.save(Path.of("titles"));
 * }
 * try (ClassModel model = ClassModel.load(Path.of("titles"));
 *         Predictor<String, Classifications> predictor = model.newPredictor(String.class, 5)) {
 *     System.out.println(predictor.predict("a red book"));
 * }
 * }</pre>
 *
 * <p>The features of a text are the hashed parts of {@link TextFeatures}. Texts and sparse features
 * are (weighted) sums of rows of an {@link io.djltp.nn.EmbeddingBag}, dense features go through
 * linear layers; {@link Builder#optBody} sets other layers. Features that are scaled to one length
 * enter a {@link ClassificationHead}.
 *
 * <p>The folder has the weights in {@code model.safetensors}, the classes in {@code labels.txt},
 * how often each occurs in the training data in {@code counts.txt}, the sizes in {@code
 * model.json}, and {@code serving.properties}. DJL Serving loads it as it is, and DJL's {@code
 * Criteria} with {@code optTranslatorFactory(new ClassModel.TranslatorFactory())}.
 */
public final class ClassModel implements AutoCloseable {

    private static final String LABELS = "labels.txt";
    private static final String COUNTS = "counts.txt";
    private static final double STEEPNESS = 0.55; // of propensities
    private static final double RARE = 1.5;
    private static final int DENSE_UNITS = 256;
    private static final int BATCH = 512;
    private static final float RATE = 0.3f; // of softmax
    private static final float RATE_OF_EACH = 0.05f; // of classes by themselves

    /** How a model is trained. */
    public enum Objective {
        /** The cross entropy of all classes: one class is right, or each of several. */
        SOFTMAX,
        /** The binary cross entropy of each class. */
        ONE_VS_ALL,
        /** The squared hinge loss of each class. */
        SQUARED_HINGE;

        /** Returns the name as in options: {@code one-vs-all}. */
        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT).replace('_', '-');
        }

        /** Returns the score of a log-probability, or of a logit. */
        double score(float value) {
            return switch (this) {
                case SOFTMAX -> Math.exp(value);
                case ONE_VS_ALL -> 1 / (1 + Math.exp(-value));
                case SQUARED_HINGE -> value;
            };
        }

        Loss newLoss() {
            return switch (this) {
                case SOFTMAX -> new VocabParallelCrossEntropyLoss();
                case ONE_VS_ALL -> OneVsAllLoss.binaryCrossEntropy();
                case SQUARED_HINGE -> OneVsAllLoss.squaredHinge();
            };
        }
    }

    private final Model model;
    private final ClassNetwork network;
    private final ClassNames names;
    private final long[] counts; // of the classes in the training data

    private ClassModel(Model model, ClassNetwork network, ClassNames names, long[] counts) {
        this.model = model;
        this.network = network.closedWith(model);
        this.names = names;
        this.counts = counts;
    }

    /**
     * Creates a builder of a new model.
     *
     * @param data the data, with {@link TextFeatures} if the rows are texts
     * @return the builder
     */
    public static Builder builder(ClassData data) {
        return new Builder(data);
    }

    /**
     * Returns what a classifier of texts has below its head, for a network of your own: a table, of
     * which the rows of a text are added up, and a block that scales the sum to length 16.
     *
     * @param rows the rows of the table, as {@link TextFeatures} has them
     * @param dim the features of a text
     * @return a new block from int32 [batch, n], where 0 fills up, to float32 [batch, dim]
     */
    public static SequentialBlock newTextBody(int rows, int dim) {
        return ClassNetwork.newTextBody(rows, dim);
    }

    /**
     * Returns whether a folder has a classifier.
     *
     * @param folder the folder
     * @return whether {@link #save} wrote to it
     */
    public static boolean isIn(Path folder) {
        return Files.exists(folder.resolve(ClassNetwork.FILE))
                && Files.exists(folder.resolve(LABELS));
    }

    /**
     * Loads a model that {@link #save} wrote.
     *
     * @param folder the folder
     * @return the model
     * @throws IOException if a file is missing or cannot be read
     * @throws MalformedModelException if the weights are of another network
     * @throws IllegalArgumentException if a class occurs twice
     */
    public static ClassModel load(Path folder) throws IOException, MalformedModelException {
        ClassNetwork network = ClassNetwork.read(folder);
        ClassNames names = ClassNames.load(folder.resolve(LABELS));
        long[] counts = readCounts(folder.resolve(COUNTS), names.size());
        Model model = Model.newInstance("classes", "PyTorch");
        ClassModel loaded = new ClassModel(model, network, names, counts);
        try (PretrainedWeights weights =
                PretrainedWeights.builder()
                        .setPath(folder.resolve(ModelFolder.WEIGHTS))
                        .setMapping(NameMapping.own())
                        .build()) {
            model.setBlock(network.newBlock(ClassificationHead.builder(), names.size()));
            weights.load(model, network.inputShapes(1));
            return loaded;
        } catch (IOException | MalformedModelException | RuntimeException | Error e) {
            model.close();
            throw e;
        }
    }

    private static long[] readCounts(Path file, int classes) throws IOException {
        try (Stream<String> lines = Files.lines(file)) {
            long[] counts = lines.mapToLong(Long::parseLong).toArray();
            if (counts.length == classes) {
                return counts;
            }
            throw new IOException(
                    "%s must have as many lines as %s, %d, and has %d"
                            .formatted(file, LABELS, classes, counts.length));
        } catch (NumberFormatException e) {
            throw new IOException(file + " has a line that is not a number: " + e.getMessage(), e);
        }
    }

    /**
     * Writes the model. A model in the folder is replaced when all new files are complete. Close
     * the trainer of the model before.
     *
     * @param folder the folder, which is made if there is none; other files in it stay
     * @throws IOException if it cannot be written
     * @throws IllegalStateException if the model is neither trained nor loaded
     */
    public void save(Path folder) throws IOException {
        Files.createDirectories(folder);
        try (SideFolder side = SideFolder.in(folder)) {
            ModelFolder.builder()
                    .setNetwork(model.getBlock())
                    .setBlockFactory(BlockFactory.class)
                    .optTranslatorFactory(TranslatorFactory.class)
                    .optArgument("features", network.features().name())
                    .optArgument("inputs", "" + network.inputs())
                    .build()
                    .save(side.getPath());
            names.save(side.resolve(LABELS));
            Files.write(side.resolve(COUNTS), (Iterable<String>) countLines()::iterator);
            network.write(side.getPath());
            side.replace(ClassNetwork.FILE);
        }
    }

    private Stream<String> countLines() {
        return LongStream.of(counts).mapToObj(Long::toString);
    }

    /**
     * Returns a trainer with {@link #newLoss}, and the {@linkplain #newOptimizer optimizer} at its
     * usual rate for batches of 512 rows.
     *
     * @param ranks the ranks, of which each needs a class or more
     * @return the initialized trainer. Close it before the model is used
     */
    public ParallelTrainer newTrainer(ParallelConfig ranks) {
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(newLoss())
                        .optOptimizer(newOptimizer(usualRate(), BATCH, () -> 0));
        ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
        trainer.initialize(getInputShapes(BATCH));
        return trainer;
    }

    private float usualRate() {
        return network.objective() == Objective.SOFTMAX ? RATE : RATE_OF_EACH;
    }

    /**
     * Returns the loss of the model's objective.
     *
     * @return a new loss
     */
    public Loss newLoss() {
        return network.objective().newLoss();
    }

    /**
     * Returns row-wise Adagrad whose rates fall in the course of a training. The table of an {@code
     * EmbeddingBag}, of which each row of the data moves many rows, has a third of the rate. A
     * {@linkplain Builder#optBody body} has its {@link ClassBody#getRateShare}.
     *
     * @param rate the learning rate of the head, at first
     * @param batch the rows of a batch
     * @param done returns the share of the training that is done, 0 to 1
     * @return a new optimizer
     */
    public Optimizer newOptimizer(float rate, int batch, DoubleSupplier done) {
        List<Block> blocks = model.getBlock().getChildren().values();
        Block head = blocks.get(blocks.size() - 1);
        ClassBody body = network.body();
        float share = body == null ? HeadRates.TABLE_SHARE : body.getRateShare();
        return HeadRates.optimizer(head, rate, batch, share, done);
    }

    /**
     * Returns a predictor of the best classes. Their scores are probabilities after {@link
     * Objective#SOFTMAX} and {@link Objective#ONE_VS_ALL}, and logits after {@link
     * Objective#SQUARED_HINGE}. A predictor's calls of several threads follow each other.
     *
     * @param input what is asked: {@code String} for texts, {@code float[]} for dense features, or
     *     a {@link ClassData.Row} of any features
     * @param k how many classes are wanted; if there are fewer, all are
     * @param <I> the type of the input
     * @return the predictor. Close it before the model
     * @throws IllegalArgumentException if the model has other features, or {@code k} is below 1
     * @throws IllegalStateException if the model is neither trained nor loaded, or is being trained
     */
    public <I> Predictor<I, Classifications> newPredictor(Class<I> input, int k) {
        Errors.check(k > 0, "A prediction has 1 class or more, not %s", k);
        List<Block> blocks = model.getBlock().getChildren().values();
        ClassSearch search = ClassSearch.of(blocks.get(blocks.size() - 1));
        boolean softmax = network.objective() == Objective.SOFTMAX;
        int most = (int) Math.min(k, search.getClasses());
        Function<NDArray, TopClasses> best =
                features -> softmax ? search.classify(features, most) : search.topK(features, most);
        Model body = Model.newInstance("body", model.getNDManager().getDevice(), "PyTorch");
        body.setBlock(new SequentialBlock().addAll(blocks.subList(0, blocks.size() - 1)));
        ClassTranslator<I> translator = ClassTranslator.of(network, names, input, best);
        return new Predictor<>(body, translator, body.getNDManager().getDevice(), false) {
            @Override
            public void close() {
                super.close();
                search.close();
                body.close();
            }
        };
    }

    /**
     * Returns DJL's model, whose network ends with a {@link ClassificationHead}.
     *
     * @return the model
     */
    public Model getModel() {
        return model;
    }

    /**
     * Returns what writes the network as an ONNX file: {@code ids} in, int32 [batch, n], the rows
     * of {@link TextFeatures} with 0 at the end of short ones, or {@code features} [batch, inputs];
     * {@code logits} [batch, classes] out, in the order of {@link #getClasses}.
     *
     * @return a builder, whose {@code build().write(getModel(), file)} writes it
     * @throws IllegalArgumentException if the model has sparse features or a body
     */
    public OnnxExport.Builder newOnnxExport() {
        boolean texts = network.text() != null;
        Errors.check(
                texts || network.features() == ClassData.Features.DENSE && network.body() == null,
                "ONNX is for classifiers of texts or dense features without a body, and this one has"
                        + " %s features%s",
                network.features(),
                network.body() == null ? "" : " and a body");
        OnnxExport.Builder export =
                texts
                        ? OnnxExport.builder().setInput("ids", DataType.INT32, new Shape(-1, -1))
                        : OnnxExport.builder()
                                .setInput("features", DataType.FLOAT32, getInputShapes(-1)[0]);
        return export.optOutput("logits")
                .optBlock(LambdaBlock.DEFAULT_NAME, (graph, x) -> graph.add("Relu", x))
                .optBlock(ClassNetwork.SCALE, ClassNetwork::scale);
    }

    /**
     * Returns what the features of a row are.
     *
     * @return texts, sparse features or dense vectors
     */
    public ClassData.Features getFeatures() {
        return network.features();
    }

    /**
     * Returns how texts become rows of the table.
     *
     * @return the features, or {@code null} if rows are no texts, or a body reads them
     */
    public @Nullable TextFeatures getTextFeatures() {
        return network.text();
    }

    /**
     * Returns the number of inputs.
     *
     * @return the rows of the table, or the dense features; 0 for texts that a body reads
     */
    public int getInputs() {
        return network.inputs();
    }

    /**
     * Returns how the model is trained.
     *
     * @return the objective
     */
    public Objective getObjective() {
        return network.objective();
    }

    /**
     * Returns the names of the classes.
     *
     * @return the names
     */
    public ClassNames getClasses() {
        return names;
    }

    /**
     * Returns how often each class occurs in the data that the model was built from.
     *
     * @return the counts
     */
    public long[] getClassCounts() {
        return counts.clone();
    }

    /**
     * Returns by how much a found label counts in propensity-scored precision: the inverse of its
     * chance to be noticed, by the formula of Jain et al. (2016) with A = 0.55 and B = 1.5.
     *
     * @return the number of each class, 1 or more
     */
    public float[] getInversePropensities() {
        long rows = Math.max(3, network.rows());
        return VocabParallelRanking.inversePropensities(counts, rows, STEEPNESS, RARE);
    }

    /**
     * Returns how many labels a row of the training data has.
     *
     * @return the mean, rounded, at least 1
     */
    public int getUsualLabels() {
        double all = LongStream.of(counts).sum();
        return (int) Math.max(1, Math.round(all / Math.max(1, network.rows())));
    }

    /**
     * Returns the shapes of the network's inputs.
     *
     * @param batch the rows of a batch
     * @return the shapes
     */
    public Shape[] getInputShapes(int batch) {
        return network.inputShapes(batch);
    }

    /** Frees the weights. */
    @Override
    public void close() {
        model.close();
    }

    /** The builder of a {@link ClassModel}. */
    public static final class Builder {

        private final ClassData data;
        private int dim = 64;
        private List<Integer> hidden = List.of();
        private @Nullable ClassBody body;
        private @Nullable Objective objective;
        private ClassificationHead.Builder head = ClassificationHead.builder();

        private Builder(ClassData data) {
            this.data = data;
            if (data.getFeatures() == ClassData.Features.DENSE) {
                hidden = List.of(DENSE_UNITS);
            }
        }

        /**
         * Sets the features of a row of the table that texts and sparse features have. Default: 64.
         *
         * @param dim the number of features
         * @return this builder
         */
        public Builder optDim(int dim) {
            Errors.check(dim > 0, "A row of the table needs 1 feature or more, not %s", dim);
            this.dim = dim;
            return this;
        }

        /**
         * Sets the units of the linear layers below the head, each with a ReLU. Default: none; for
         * dense features one layer of 256.
         *
         * @param units the units of each layer
         * @return this builder
         */
        public Builder optHidden(Integer... units) {
            for (int each : units) {
                Errors.check(each > 0, "A layer needs 1 unit or more, not %s", each);
            }
            hidden = List.of(units);
            return this;
        }

        /**
         * Sets the layers below those of {@link #optHidden}, of which there are then none by
         * default. Default: a table of {@link #optDim} features, or none for dense features.
         *
         * @param body the layers, which are closed with the model
         * @return this builder
         */
        public Builder optBody(ClassBody body) {
            this.body = body;
            hidden = List.of();
            return this;
        }

        /**
         * Sets how the model is trained. Default: {@link Objective#SOFTMAX}, or {@link
         * Objective#ONE_VS_ALL} if the data has many labels a row.
         *
         * @param objective the objective
         * @return this builder
         */
        public Builder optObjective(Objective objective) {
            this.objective = objective;
            return this;
        }

        /**
         * Sets options of the head, such as sampling or 16 bits. Default: none.
         *
         * @param head a builder, whose units and sharing of the input are set here
         * @return this builder
         */
        public Builder optHead(ClassificationHead.Builder head) {
            this.head = head;
            return this;
        }

        /**
         * Builds the model, whose weights get values when its trainer is initialized.
         *
         * @return the model
         * @throws IllegalArgumentException if the data has no class, or texts without {@link
         *     TextFeatures} or the body
         * @throws UncheckedIOException if the body cannot be read
         */
        public ClassModel build() {
            ClassNames names = data.getClasses();
            Errors.check(
                    !names.isEmpty(), "A classifier needs 1 class or more: no row has a label");
            TextFeatures text = data.textFeatures instanceof TextFeatures given ? given : null;
            boolean texts = data.getFeatures() == ClassData.Features.TEXT;
            Errors.check(
                    !texts || (body == null ? text != null : data.textFeatures == body),
                    body == null
                            ? "A classifier of texts needs data with TextFeatures:"
                                    + " optTextFeatures(new TextFeatures(...))"
                            : "A body of texts needs data with its ids: optTextFeatures(body)");
            int inputs =
                    texts
                            ? text == null ? 0 : text.rows()
                            : data.getFeatures() == ClassData.Features.SPARSE
                                    ? Math.addExact(data.getFeatureCount(), 1)
                                    : data.getFeatureCount();
            Objective usual = data.hasManyLabels() ? Objective.ONE_VS_ALL : Objective.SOFTMAX;
            ClassNetwork network =
                    new ClassNetwork(
                            data.getFeatures(),
                            texts ? text : null,
                            inputs,
                            dim,
                            hidden,
                            objective == null ? usual : objective,
                            data.size(),
                            body);
            SequentialBlock block;
            try {
                block = network.newBlock(head, names.size());
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            Model model = Model.newInstance("classes", "PyTorch");
            long[] counts = data.getClassCounts();
            List<Block> blocks = block.getChildren().values();
            blocks.get(blocks.size() - 1)
                    .setInitializer(
                            (manager, shape, type) -> manager.create(biases(network, counts)),
                            Parameter.Type.BIAS);
            model.setBlock(block);
            return new ClassModel(model, network, names, counts);
        }

        /**
         * Returns the biases that a training begins with: of classes by themselves those of their
         * shares of the rows. From 0 it would take long to learn that nearly all are no labels.
         */
        private static float[] biases(ClassNetwork network, long[] counts) {
            float[] biases = new float[counts.length];
            for (int i = 0; i < biases.length; i++) {
                double others = Math.max(0, network.rows() - counts[i]);
                biases[i] =
                        switch (network.objective()) {
                            case SOFTMAX -> 0;
                            case ONE_VS_ALL -> (float) Math.log((counts[i] + 0.5) / (others + 0.5));
                            case SQUARED_HINGE -> -1;
                        };
            }
            return biases;
        }
    }

    /** Makes the network of a folder for DJL, over any number of ranks. */
    public static final class BlockFactory extends ParallelBlockFactory {

        private static final long serialVersionUID = 1L;

        /** Creates a factory. */
        public BlockFactory() {}

        /** {@inheritDoc} */
        @Override
        protected Block newNetwork(Path folder, Map<String, ?> arguments) throws IOException {
            int classes = ClassNames.load(folder.resolve(LABELS)).size();
            return ClassNetwork.read(folder).newBlock(ClassificationHead.builder(), classes);
        }

        /** {@inheritDoc} */
        @Override
        protected Shape[] getInputShapes(Map<String, ?> arguments) {
            ClassData.Features features =
                    ClassData.Features.valueOf(
                            ArgumentsUtil.stringValue(arguments, "features", "TEXT"));
            return ClassNetwork.inputShapes(
                    features, ArgumentsUtil.intValue(arguments, "inputs", 1), 1);
        }
    }

    /**
     * Makes translators for DJL: {@code String}, {@code float[]} or {@link ClassData.Row} in, as
     * for {@link #newPredictor}, {@code Classifications} out; or for DJL Serving {@code Input} in,
     * with the rows of {@link ClassData.Row#ofJson} as {@code inputs} of JSON, or a text, and
     * {@code Output} out. Argument: {@code topk}, how many classes, 5 by default.
     */
    public static final class TranslatorFactory implements ai.djl.translate.TranslatorFactory {

        /** Creates a factory. */
        public TranslatorFactory() {}

        /** {@inheritDoc} */
        @Override
        public Set<Pair<Type, Type>> getSupportedTypes() {
            return Set.of(
                    new Pair<>(String.class, Classifications.class),
                    new Pair<>(float[].class, Classifications.class),
                    new Pair<>(ClassData.Row.class, Classifications.class),
                    new Pair<>(Input.class, Output.class));
        }

        /** {@inheritDoc} */
        @Override
        @SuppressWarnings("unchecked")
        public <I, O> Translator<I, O> newInstance(
                Class<I> input, Class<O> output, Model model, Map<String, ?> arguments)
                throws TranslateException {
            try {
                ClassNetwork network = ClassNetwork.read(model.getModelPath()).closedWith(model);
                ClassNames names = ClassNames.load(model.getModelPath().resolve(LABELS));
                int k = Math.min(ArgumentsUtil.intValue(arguments, "topk", 5), names.size());
                boolean softmax = network.objective() == Objective.SOFTMAX;
                VocabParallelTopK best = new VocabParallelTopK(k, softmax);
                Function<NDArray, TopClasses> search = all -> best.evaluate(new NDList(all));
                if (input == Input.class) {
                    return (Translator<I, O>)
                            new ClassTranslator.Requests(
                                    ClassTranslator.of(
                                            network, names, ClassData.Row.class, search));
                }
                return (Translator<I, O>) ClassTranslator.of(network, names, input, search);
            } catch (IOException e) {
                throw new TranslateException(e.getMessage(), e);
            }
        }
    }
}
