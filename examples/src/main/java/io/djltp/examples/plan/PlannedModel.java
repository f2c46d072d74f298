package io.djltp.examples.plan;

import ai.djl.basicmodelzoo.cv.classification.ResNetV1;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.loss.Loss;

import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.lm.CharacterText;
import io.djltp.examples.lm.LmNetwork;
import io.djltp.examples.train.TrainCommand;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.zoo.lemma.LemmaNetwork;
import io.djltp.zoo.minilm.MiniLm;

import java.io.IOException;
import java.util.List;
import java.util.Set;

/** A model that {@code tp plan} knows: a new one is a class, and a line in {@link #ALL}. */
interface PlannedModel {

    /** All of them. */
    List<PlannedModel> ALL =
            List.of(new LemmatiserModel(), new MiniLmModel(), new LmModel(), new ResnetModel());

    /** Returns the name on the command line. */
    String getName();

    /** Returns what it is, in one line. */
    String getDescription();

    /** Returns the options that say something of it, beside those of every plan. */
    Set<String> getOptions();

    /** Returns the usual number of rows of a batch. */
    int getBatch();

    /** Returns what it is usually trained by, or {@code null} if it is not trained. */
    OptimizerName getOptimizer();

    /**
     * Returns the network.
     *
     * @param options its sizes
     * @param batch the rows of a batch
     * @throws IOException if something cannot be read that sizes follow from
     */
    Planned create(PlanOptions options, int batch) throws IOException;

    /**
     * A network that is planned.
     *
     * @param block the network, without values
     * @param inputs the shapes of the inputs of a batch
     * @param loss the loss, or {@code null} of one that is not trained
     */
    record Planned(Block block, Shape[] inputs, Loss loss) {}

    /** The lemmatiser of {@code tp train}, with the German dictionary and the defaults. */
    static final class LemmatiserModel implements PlannedModel {

        private static final int GERMAN_LEMMAS = 120_658;
        private static final int DIM = 64;
        private static final int BATCH = 512;

        @Override
        public String getName() {
            return "lemmatiser";
        }

        @Override
        public String getDescription() {
            return "the network of tp train: a bag of n-grams, and a head with a class for each lemma";
        }

        @Override
        public Set<String> getOptions() {
            return Set.of("--classes", "--optimizer");
        }

        @Override
        public int getBatch() {
            return BATCH;
        }

        @Override
        public OptimizerName getOptimizer() {
            return OptimizerName.ADAGRAD;
        }

        @Override
        public Planned create(PlanOptions options, int batch) {
            int lemmas = options.classes == null ? GERMAN_LEMMAS : options.classes;
            Block head =
                    HeadKind.SAMPLED
                            .builder(lemmas, HeadKind.defaultShare(lemmas), 1)
                            .optBatchShardedInput(true)
                            .build();
            return new Planned(
                    LemmaNetwork.create(TrainCommand.tableRows(lemmas), DIM, head),
                    new Shape[] {new Shape(batch, TrainCommand.N_GRAMS)},
                    new VocabParallelCrossEntropyLoss());
        }
    }

    /** The language model of {@code tp lm}, with its options and defaults. */
    static final class LmModel implements PlannedModel {

        private static final int BATCH = 16;

        @Override
        public String getName() {
            return "lm";
        }

        @Override
        public String getDescription() {
            return "the language model of tp lm: grouped queries, gated MLPs, RMS norms, and the"
                    + " embedding again as the head";
        }

        @Override
        public Set<String> getOptions() {
            return Set.of(
                    "--layers",
                    "--width",
                    "--heads",
                    "--kv-heads",
                    "--context",
                    "--sequence-parallel",
                    "--optimizer");
        }

        @Override
        public int getBatch() {
            return BATCH;
        }

        @Override
        public OptimizerName getOptimizer() {
            return OptimizerName.ADAM;
        }

        @Override
        public Planned create(PlanOptions options, int batch) throws IOException {
            options.sizes.check();
            int characters = CharacterText.read().vocabulary();
            return new Planned(
                    LmNetwork.create(options.sizes, characters, options.sequenceParallel),
                    new Shape[] {LmNetwork.inputShape(batch, options.sizes)},
                    new VocabParallelCrossEntropyLoss());
        }
    }

    /** The pretrained network of {@code tp embed}: a forward pass, nothing is trained. */
    static final class MiniLmModel implements PlannedModel {

        private static final int BATCH = 16;

        @Override
        public String getName() {
            return "minilm";
        }

        @Override
        public String getDescription() {
            return "all-MiniLM-L6-v2 of tp embed: the forward pass on a batch of texts, no training";
        }

        @Override
        public Set<String> getOptions() {
            return Set.of("--tokens");
        }

        @Override
        public int getBatch() {
            return BATCH;
        }

        @Override
        public OptimizerName getOptimizer() {
            return null;
        }

        /** Ids of word pieces, and the mask. */
        @Override
        public Planned create(PlanOptions options, int batch) {
            Shape ids = new Shape(batch, options.tokens);
            return new Planned(MiniLm.create(), new Shape[] {ids, ids}, null);
        }
    }

    /** ResNet-18 of DJL's model zoo for ImageNet, its last layer replaced by a head that is cut. */
    static final class ResnetModel implements PlannedModel {

        private static final Shape IMAGE = new Shape(3, 224, 224);
        private static final int IMAGENET_CLASSES = 1000;
        private static final int BATCH = 512;

        @Override
        public String getName() {
            return "resnet";
        }

        @Override
        public String getDescription() {
            return "ResNet-18 of DJL's model zoo, with a head that is cut in place of its last layer";
        }

        @Override
        public Set<String> getOptions() {
            return Set.of("--classes", "--optimizer");
        }

        @Override
        public int getBatch() {
            return BATCH;
        }

        @Override
        public OptimizerName getOptimizer() {
            return OptimizerName.ADAGRAD;
        }

        @Override
        public Planned create(PlanOptions options, int batch) {
            int classes = options.classes == null ? IMAGENET_CLASSES : options.classes;
            return new Planned(
                    create(IMAGE, classes),
                    new Shape[] {new Shape(batch).addAll(IMAGE)},
                    new VocabParallelCrossEntropyLoss());
        }

        /** Puts a head in the place of the last layer, which a flattening of two axes follows. */
        static Block create(Shape image, int classes) {
            SequentialBlock network =
                    ResNetV1.builder()
                            .setImageShape(image)
                            .setNumLayers(18)
                            .setOutSize(classes)
                            .build();
            network.removeLastBlock();
            network.removeLastBlock();
            return network.add(
                    ClassificationHead.builder()
                            .setUnits(classes)
                            .optBatchShardedInput(true)
                            .build());
        }
    }
}
