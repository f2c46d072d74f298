package io.djltp.plan;

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
import ai.djl.nn.transformer.BertBlock;
import ai.djl.nn.transformer.BertPretrainingBlock;
import ai.djl.nn.transformer.ScaledDotProductAttentionBlock;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.util.PairList;

import io.djltp.parameters.BlockWalk;
import io.djltp.testing.Network.Batches;
import io.djltp.testing.TrainingRun;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.BinaryOperator;

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
        SequentialBlock network = new SequentialBlock();
        network.add(bert)
                .add(outputs -> new NDList(outputs.get(1)), "pooled")
                .add(Linear.builder().setUnits(CLASSES).build());
        // of the bias of keys the gradient is 0 but for rounding, which shows beside a bias of 0
        network.setInitializer(new NormalInitializer(0.02f), Parameter.Type.BIAS);
        return network;
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

    /** Returns batches of sentences: words, types, masks, and a class for each. */
    static Batches sentences(int rows) {
        return (manager, step) ->
                new NDList[] {
                    new NDList(
                            ids(manager, 10 + step, rows, WORDS),
                            ids(manager, 30 + step, rows, 2),
                            mask(manager, rows)),
                    new NDList(TrainingRun.labels(manager, 50 + step, rows, CLASSES))
                };
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

    /** Returns batches of images. */
    static Batches images(int rows) {
        return (manager, step) ->
                new NDList[] {
                    new NDList(TrainingRun.random(manager, 10 + step, rows, 1, 8, 8)),
                    new NDList(TrainingRun.labels(manager, 50 + step, rows, CLASSES))
                };
    }

    /** Returns BERT with its two heads of pretraining, in fields of DJL's class. */
    static BertPretrainingBlock pretraining(boolean drops) {
        BertPretrainingBlock network =
                new BertPretrainingBlock(
                        small().setTokenDictionarySize(WORDS).optMaxSequenceLength(LENGTH));
        if (!drops) {
            switchDropoutOff(network);
        }
        network.setInitializer(new NormalInitializer(0.02f), Parameter.Type.BIAS);
        return network;
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
        return new SequentialBlock()
                .add(
                        TrainableWordEmbedding.builder()
                                .setVocabulary(
                                        DefaultVocabulary.builder()
                                                .add(Arrays.asList(words))
                                                .build())
                                .setEmbeddingSize(9)
                                .build())
                .add(LambdaBlock.singleton(rows -> rows.mean(new int[] {1})))
                .add(Linear.builder().setUnits(CLASSES).build());
    }

    /** Returns batches of a few words each, and a class. */
    static Batches wordLists(int rows) {
        return (manager, step) ->
                new NDList[] {
                    new NDList(ids(manager, 10 + step, rows, WORDS)),
                    new NDList(TrainingRun.labels(manager, 50 + step, rows, CLASSES))
                };
    }

    /** Returns a network of two layers with a batch normalization, which takes no bias, between. */
    static SequentialBlock normed() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(9).optBias(false).build())
                .add(BatchNorm.builder().build())
                .add(Activation.tanhBlock())
                .add(Linear.builder().setUnits(CLASSES).build());
    }

    /** Returns a network of two layers. */
    static SequentialBlock perceptron() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(9).build())
                .add(Activation.tanhBlock())
                .add(Linear.builder().setUnits(CLASSES).build());
    }

    /** Returns an attention of three heads, and a classifier of the mean of what it gives. */
    static SequentialBlock attention() {
        SequentialBlock network = new SequentialBlock();
        network.add(
                        ScaledDotProductAttentionBlock.builder()
                                .setEmbeddingSize(12)
                                .setHeadCount(3)
                                .optAttentionProbsDropoutProb(0)
                                .build())
                .add(LambdaBlock.singleton(rows -> rows.mean(new int[] {1})))
                .add(Linear.builder().setUnits(CLASSES).build());
        network.setInitializer(new NormalInitializer(0.02f), Parameter.Type.BIAS);
        return network;
    }

    /** Returns batches of short sequences of 12 features, and a class. */
    static Batches sequences(int rows) {
        return (manager, step) ->
                new NDList[] {
                    new NDList(TrainingRun.random(manager, 10 + step, rows, LENGTH, 12)),
                    new NDList(TrainingRun.labels(manager, 50 + step, rows, CLASSES))
                };
    }

    /**
     * Returns two branches that share a pair of layers, put together by a function, and a layer.
     */
    static SequentialBlock branches() {
        SequentialBlock pair =
                new SequentialBlock()
                        .add(Linear.builder().setUnits(9).build())
                        .add(Activation.tanhBlock())
                        .add(Linear.builder().setUnits(4).build());
        SequentialBlock turned =
                new SequentialBlock().add(LambdaBlock.singleton(NDArray::neg)).add(pair);
        ParallelBlock both =
                new ParallelBlock(
                        outputs -> {
                            NDArray x = outputs.get(0).head();
                            NDArray y = outputs.get(1).head();
                            return new NDList(x.mul(y).concat(x.sub(y), 1));
                        },
                        List.<Block>of(pair, turned));
        SequentialBlock network = new SequentialBlock();
        network.add(both).add(Linear.builder().setUnits(CLASSES).build());
        network.setInitializer(new NormalInitializer(0.02f), Parameter.Type.BIAS); // one cancels
        return network;
    }

    /**
     * Returns two layers side by side, put together by a function, and one that gets the result.
     */
    static SequentialBlock sideBySide(BinaryOperator<NDArray> function) {
        ParallelBlock both =
                new ParallelBlock(
                        outputs ->
                                new NDList(
                                        function.apply(
                                                outputs.get(0).head(), outputs.get(1).head())),
                        List.<Block>of(
                                Linear.builder().setUnits(6).build(),
                                Linear.builder().setUnits(6).build()));
        return new SequentialBlock().add(both).add(Linear.builder().setUnits(CLASSES).build());
    }

    /** A block of a user's own, with layers in fields and in a list. */
    static final class Residual extends AbstractBlock {

        private final Linear in;
        private final List<Block> up = new ArrayList<>();
        private final Linear[] down = new Linear[2];
        private final Block out;
        private final Block dropout;

        Residual(int features, int classes) {
            in = addChildBlock("in", Linear.builder().setUnits(features).build());
            for (int i = 0; i < 2; i++) {
                up.add(addChildBlock("up", Linear.builder().setUnits(13).build()));
                down[i] =
                        addChildBlock(
                                "down", Linear.builder().setUnits(features).optBias(false).build());
            }
            dropout = addChildBlock("dropout", Dropout.builder().optRate(0).build());
            out = addChildBlock("out", Linear.builder().setUnits(classes).build());
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
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
