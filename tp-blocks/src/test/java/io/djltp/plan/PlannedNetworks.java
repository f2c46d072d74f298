package io.djltp.plan;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.basicmodelzoo.cv.classification.ResNetV1;
import ai.djl.modality.nlp.DefaultVocabulary;
import ai.djl.modality.nlp.embedding.TrainableWordEmbedding;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.ParallelBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.nn.transformer.BertBlock;
import ai.djl.nn.transformer.BertPretrainingBlock;
import ai.djl.nn.transformer.ScaledDotProductAttentionBlock;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.util.PairList;

import io.djltp.internal.parameters.BlockWalk;
import io.djltp.testing.Network.Batches;
import io.djltp.testing.TrainingRun;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.BiFunction;
import java.util.function.BinaryOperator;
import java.util.stream.LongStream;

/** Networks of DJL's blocks, as users have them. */
final class PlannedNetworks {

    static final int LENGTH = 5;
    static final int WORDS = 30;
    static final int CLASSES = 7;

    private PlannedNetworks() {}

    /** Returns a ResNet of DJL's model zoo, for images of 8 x 8. */
    static SequentialBlock resnet() {
        return ResNetV1.builder()
                .setImageShape(new Shape(1, 8, 8))
                .setNumLayers(8)
                .setOutSize(CLASSES)
                .build();
    }

    /** Returns a BertBlock with a classifier of its pooled output. */
    static SequentialBlock bert(BertBlock.Builder builder, boolean drops) {
        BertBlock bert = builder.setTokenDictionarySize(WORDS).optMaxSequenceLength(LENGTH).build();
        if (!drops) {
            switchDropoutOff(bert);
        }
        Block pooled = new LambdaBlock(outputs -> new NDList(outputs.get(1)), "pooled");
        // of the bias of keys the gradient is 0 but for rounding, which shows beside a bias of 0
        return biased(sequence(bert, pooled, linear(CLASSES)));
    }

    /** Returns the smallest BertBlock with several of everything. */
    static BertBlock.Builder small() {
        return BertBlock.builder()
                .optEmbeddingSize(12)
                .optAttentionHeadCount(3)
                .optHiddenSize(20)
                .optTransformerBlockCount(2)
                .optHiddenDropoutProbability(0);
    }

    /** DJL's encoders have a rate of 0.1, whatever the builder is told. */
    static void switchDropoutOff(Block network) {
        BlockWalk.of(
                network,
                (block, path, certain) -> {
                    if (block instanceof Dropout) {
                        PrivateFields.write(block, Dropout.class, "rate", 0f);
                    }
                });
    }

    private static <T extends Block> T biased(T network) {
        network.setInitializer(new NormalInitializer(0.02f), Parameter.Type.BIAS);
        return network;
    }

    /** Returns batches of something, and a class for each. */
    private static Batches classified(int rows, BiFunction<NDManager, Integer, NDList> data) {
        return (manager, step) ->
                new NDList[] {
                    data.apply(manager, step),
                    new NDList(TrainingRun.labels(manager, 50 + step, rows, CLASSES))
                };
    }

    /** Returns batches of sentences: words, types, masks, and a class for each. */
    static Batches sentences(int rows) {
        return classified(
                rows,
                (manager, step) ->
                        new NDList(
                                ids(manager, 10 + step, rows, WORDS),
                                ids(manager, 30 + step, rows, 2),
                                mask(manager, rows)));
    }

    private static NDArray ids(NDManager manager, long seed, int rows, int words) {
        return TrainingRun.labels(manager, seed, rows * LENGTH, words).reshape(rows, LENGTH);
    }

    private static NDArray mask(NDManager manager, int rows) {
        float[] mask = new float[rows * LENGTH];
        for (int i = 0; i < mask.length; i++) {
            mask[i] = i % LENGTH < 2 + i / LENGTH % 4 ? 1 : 0; // sentences of 2 to 5 words
        }
        return manager.create(mask, new Shape(rows, LENGTH)).toType(DataType.INT64, false);
    }

    /** Returns batches of random numbers of a shape for each row, and a class. */
    static Batches numbers(int rows, long... shape) {
        long[] all = LongStream.concat(LongStream.of(rows), LongStream.of(shape)).toArray();
        return classified(
                rows, (manager, step) -> new NDList(TrainingRun.random(manager, 10 + step, all)));
    }

    /** Returns BERT with its two heads of pretraining, in fields of DJL's class. */
    static BertPretrainingBlock pretraining(boolean drops) {
        BertPretrainingBlock network =
                new BertPretrainingBlock(
                        small().setTokenDictionarySize(WORDS).optMaxSequenceLength(LENGTH));
        if (!drops) {
            switchDropoutOff(network);
        }
        return biased(network);
    }

    /** Returns sentences, of each which two words are masked, with these and a class for labels. */
    static Batches maskedSentences(int rows) {
        return (manager, step) -> {
            NDList data = sentences(rows).make(manager, step)[0];
            long[] places = new long[2 * rows];
            Arrays.setAll(places, i -> i % 2);
            data.add(manager.create(places, new Shape(rows, 2)));
            NDArray words = TrainingRun.labels(manager, 70 + step, 2 * rows, WORDS);
            NDArray counted = manager.ones(new Shape(rows, 2), DataType.INT64);
            NDArray next = TrainingRun.labels(manager, 90 + step, rows, 2);
            return new NDList[] {data, new NDList(next, words.reshape(rows, 2), counted)};
        };
    }

    /** Returns the mean of the embeddings of some words, and a classifier of it. */
    static SequentialBlock words() {
        String[] words = new String[WORDS];
        Arrays.setAll(words, i -> "w" + i);
        return sequence(
                TrainableWordEmbedding.builder()
                        .setVocabulary(
                                DefaultVocabulary.builder().add(Arrays.asList(words)).build())
                        .setEmbeddingSize(9)
                        .build(),
                map(rows -> rows.mean(new int[] {1})),
                linear(CLASSES));
    }

    /** Returns batches of a few words each, and a class. */
    static Batches wordLists(int rows) {
        return classified(
                rows, (manager, step) -> new NDList(ids(manager, 10 + step, rows, WORDS)));
    }

    /** Returns a network of two layers with a batch normalization, which takes no bias, between. */
    static SequentialBlock normed() {
        return sequence(linear(9, false), BatchNorm.builder().build(), tanh(), linear(CLASSES));
    }

    /** Returns a network of two layers with a layer normalization between. */
    static SequentialBlock layerNormed() {
        return sequence(linear(9), LayerNorm.builder().build(), tanh(), linear(CLASSES));
    }

    /** Returns a network of two layers. */
    static SequentialBlock perceptron() {
        return sequence(linear(9), tanh(), linear(CLASSES));
    }

    /** Returns an attention of three heads, and a classifier of the mean of what it gives. */
    static SequentialBlock attention() {
        return biased(
                sequence(
                        ScaledDotProductAttentionBlock.builder()
                                .setEmbeddingSize(12)
                                .setHeadCount(3)
                                .optAttentionProbsDropoutProb(0)
                                .build(),
                        map(rows -> rows.mean(new int[] {1})),
                        linear(CLASSES)));
    }

    /**
     * Returns two branches that share a pair of layers, put together by a function, and a layer.
     */
    static SequentialBlock branches() {
        Block pair = sequence(linear(9), tanh(), linear(4));
        return biased( // one cancels
                sequence(
                        both(
                                (x, y) -> x.mul(y).concat(x.sub(y), 1),
                                pair,
                                sequence(map(NDArray::neg), pair)),
                        linear(CLASSES)));
    }

    private static Block both(BinaryOperator<NDArray> function, Block... blocks) {
        return new ParallelBlock(
                outputs -> new NDList(function.apply(outputs.get(0).head(), outputs.get(1).head())),
                List.of(blocks));
    }

    /**
     * Returns two layers side by side, put together by a function, and one that gets the result.
     */
    static SequentialBlock sideBySide(BinaryOperator<NDArray> function) {
        return sequence(both(function, linear(6), linear(6)), linear(CLASSES));
    }

    /** A block of a user's own, with layers in fields and in a list. */
    static final class Residual extends AbstractBlock {

        private final Linear in;
        private final List<Block> up = new ArrayList<>();
        private final Linear[] down = new Linear[2];
        private final Block out;
        private final Block dropout;

        Residual(int features, int classes) {
            in = addChildBlock("in", linear(features));
            for (int i = 0; i < 2; i++) {
                up.add(addChildBlock("up", linear(13)));
                down[i] = addChildBlock("down", linear(features, false));
            }
            dropout = addChildBlock("dropout", Dropout.builder().optRate(0).build());
            out = addChildBlock("out", linear(classes));
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList inputs, boolean training, PairList<String, Object> p) {
            NDList x = in.forward(store, inputs, training);
            for (int i = 0; i < 2; i++) {
                NDArray hidden = up.get(i).forward(store, x, training).head();
                hidden = Activation.gelu(hidden);
                NDList dropped = dropout.forward(store, new NDList(hidden), training);
                NDList y = down[i].forward(store, dropped, training);
                x = new NDList(x.head().add(y.head()));
            }
            return out.forward(store, x, training);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return out.getOutputShapes(inputShapes);
        }

        @Override
        public void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            in.initialize(manager, type, shapes);
            Shape[] features = in.getOutputShapes(shapes);
            for (int i = 0; i < 2; i++) {
                up.get(i).initialize(manager, type, features);
                down[i].initialize(manager, type, up.get(i).getOutputShapes(features));
            }
            dropout.initialize(manager, type, features);
            out.initialize(manager, type, features);
        }
    }

    /** Returns a plan for {@link Residual}. */
    static Plan residualPlan() {
        return Plan.builder()
                .add("up.[0-1]", Style.column())
                .add("down.*", Style.row())
                .add("dropout", Style.dropout())
                .add("out", Style.column().gatherOutput())
                .build();
    }
}
