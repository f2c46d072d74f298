package io.djltp.examples.plan;

import ai.djl.basicmodelzoo.cv.classification.ResNetV1;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.loss.Loss;

import io.djltp.classes.ClassModel;
import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.examples.lm.LmNetwork;
import io.djltp.llm.zoo.MiniLmFolder;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.util.Locale;
import java.util.Set;

/** A model that {@code tp plan} knows. */
enum PlannedModel {
    /** The lemmatiser of {@code tp train}, with the German dictionary and the defaults. */
    LEMMATISER(
            "the network of tp train: a bag of n-grams, and a head with a class for each lemma",
            512,
            OptimizerName.ADAGRAD,
            "--classes",
            "--optimizer",
            "--shard-optimizer") {
        @Override
        Planned create(PlanOptions options, int batch) {
            int lemmas = options.classes == null ? GERMAN_LEMMAS : options.classes;
            Block head =
                    HeadKind.SAMPLED
                            .builder(lemmas, HeadKind.defaultShare(lemmas), 1)
                            .optBatchShardedInput(true)
                            .build();
            return new Planned(
                    ClassModel.newTextBody(LemmaCorpus.tableRows(lemmas), DIM).add(head),
                    new Shape[] {new Shape(batch, LemmaCorpus.MOST_N_GRAMS)},
                    new VocabParallelCrossEntropyLoss());
        }
    },

    /** The pretrained network of {@code tp embed}: a forward pass, nothing is trained. */
    MINILM(
            "all-MiniLM-L6-v2 of tp embed: the forward pass on a batch of texts, no training",
            16,
            null,
            "--tokens") {
        @Override
        Planned create(PlanOptions options, int batch) throws IOException {
            Shape ids = new Shape(batch, options.tokens);
            options.read(MiniLmFolder.get());
            return new Planned(options.config().newBlock(false), new Shape[] {ids}, null);
        }
    },

    /** The language model of {@code tp lm}, with its options and defaults. */
    LM(
            "the language model of tp lm: grouped queries, gated MLPs, RMS norms, and the"
                    + " embedding again as the head",
            16,
            OptimizerName.ADAM,
            "--layers",
            "--width",
            "--heads",
            "--kv-heads",
            "--context",
            "--vocabulary",
            "--sequence-parallel",
            "--optimizer",
            "--shard-optimizer") {
        @Override
        Planned create(PlanOptions options, int batch) throws IOException {
            options.sizes.check();
            return new Planned(
                    LmNetwork.create(
                            options.sizes, options.sizes.vocabulary, options.sequenceParallel),
                    new Shape[] {LmNetwork.inputShape(batch, options.sizes)},
                    new VocabParallelCrossEntropyLoss());
        }
    },

    /** A folder of Hugging Face: a forward pass, or with an optimizer a step. */
    FOLDER(
            "a language model of Hugging Face: a batch of texts",
            1,
            null,
            "--tokens",
            "--context",
            "--optimizer",
            "--shard-optimizer") {
        @Override
        Planned create(PlanOptions options, int batch) {
            boolean trained = options.optimizer(this) != null;
            return new Planned(
                    options.config().newBlock(trained),
                    new Shape[] {new Shape(batch, options.tokens)},
                    trained ? new VocabParallelCrossEntropyLoss() : null);
        }
    },

    /** ResNet-18 of DJL's model zoo for ImageNet, its last layer replaced by a head that is cut. */
    RESNET(
            "ResNet-18 of DJL's model zoo, with a head that is cut in place of its last layer",
            512,
            OptimizerName.ADAGRAD,
            "--classes",
            "--optimizer",
            "--shard-optimizer") {
        @Override
        Planned create(PlanOptions options, int batch) {
            return resnet(
                    IMAGE, options.classes == null ? IMAGENET_CLASSES : options.classes, batch);
        }
    };

    private static final int GERMAN_LEMMAS = 120_658;
    private static final int DIM = 64; // of the lemmatiser
    private static final Shape IMAGE = new Shape(3, 224, 224);
    private static final int IMAGENET_CLASSES = 1000;

    /** What it is, in one line. */
    final String description;

    /** The usual number of rows of a batch. */
    final int batch;

    /** What it is usually trained by, or {@code null} if it is not trained. */
    final @Nullable OptimizerName optimizer;

    /** The options that say something of it, beside those of every plan. */
    final Set<String> options;

    PlannedModel(
            String description, int batch, @Nullable OptimizerName optimizer, String... options) {
        this.description = description;
        this.batch = batch;
        this.optimizer = optimizer;
        this.options = Set.of(options);
    }

    /**
     * Returns the network.
     *
     * @param options its sizes
     * @param batch the rows of a batch
     * @throws IOException if something cannot be read that sizes follow from
     */
    abstract Planned create(PlanOptions options, int batch) throws IOException;

    /**
     * A network that is planned.
     *
     * @param block the network, without values
     * @param inputs the shapes of the inputs of a batch
     * @param loss the loss, or {@code null} of one that is not trained
     */
    record Planned(Block block, Shape[] inputs, @Nullable Loss loss) {}

    /** Puts a head instead of the last layer, which a flattening of two axes follows. */
    static Planned resnet(Shape image, int classes, int batch) {
        SequentialBlock network =
                ResNetV1.builder()
                        .setImageShape(image)
                        .setNumLayers(18)
                        .setOutSize(classes)
                        .build();
        network.removeLastBlock();
        network.removeLastBlock();
        network.add(
                ClassificationHead.builder().setUnits(classes).optBatchShardedInput(true).build());
        return new Planned(
                network,
                new Shape[] {new Shape(batch).addAll(image)},
                new VocabParallelCrossEntropyLoss());
    }

    /** Returns the name on the command line. */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
