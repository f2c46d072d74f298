package io.djltp.nn;

import static io.djltp.testing.Blocks.table;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import ai.djl.MalformedModelException;
import ai.djl.modality.nlp.DefaultVocabulary;
import ai.djl.modality.nlp.embedding.TrainableWordEmbedding;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.cut.Cut;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.PlainEmbedding;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.testing.Unchecked;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.function.Supplier;

/** An embedding whose vocabulary is cut is DJL's. */
public class VocabParallelEmbeddingTest extends RecordedTest {

    private static final int FEATURES = 4;

    private static VocabParallelEmbedding.Builder embedding(int vocabulary) {
        return table(vocabulary, FEATURES);
    }

    /** Before an ordinary layer, with each of the optimizers. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void trainsAsDjls(TrainerKind kind) {
        List<Supplier<Optimizer>> rules =
                List.of(
                        () -> Configs.sgd(0.3f),
                        () -> Configs.sgd(0.3f, 0.9f),
                        () -> Configs.adam(0.02f));
        int[] vocabularies = {16, 13, 15};
        for (int i = 0; i < 3; i++) {
            int vocabulary = vocabularies[i];
            Block plain = network(new PlainEmbedding(vocabulary, FEATURES));
            TrainingRun expected = run(PLAIN, vocabulary, plain, 6, rules.get(i).get());
            Block block = network(embedding(vocabulary).build());
            TrainingRun actual = run(kind, vocabulary, block, 6, rules.get(i).get());
            actual.assertSame(expected, i == 2 ? 1e-4 : 1e-5);
        }
    }

    private static Network.Batches batches(int vocabulary, int features) {
        return Network.batches("5x3:" + vocabulary, "5x3x" + features);
    }

    /** Trains an embedding before an ordinary layer, or alone. */
    private static TrainingRun run(
            TrainerKind kind, int vocabulary, Block network, int features, Optimizer rule) {
        Network.Batches batches = batches(vocabulary, features);
        return TrainingRun.of(kind, network, Configs.of(new HalfSquareLoss(), rule), batches, 3);
    }

    private static Block network(Block embedding) {
        return Blocks.sequence(embedding, Blocks.linear(6), Blocks.tanh());
    }

    private static TrainingRun lookups(TrainerKind kind, int vocabulary, Block embedding) {
        return run(kind, vocabulary, embedding, FEATURES, Configs.sgd(0.3f));
    }

    /** Returns the collective operations of a pass. */
    private static CollectiveCounts counts(TrainerKind kind, Block network, int features) {
        CollectiveCounts[] counts = new CollectiveCounts[1];
        Network.Batches batches = batches(13, features);
        TrainingRun.of(
                kind,
                network,
                new HalfSquareLoss(),
                new Shape(5, 3),
                (trainer, manager, numbers) -> {
                    TrainingRun.steps(trainer, numbers, batches, 0, 2);
                    NDList[] batch = batches.make(manager, 2);
                    counts[0] =
                            TrainingRun.counted(
                                    trainer,
                                    () -> TrainingRun.backward(trainer, batch[0], batch[1]));
                });
        return counts[0];
    }

    /** Three steps of any number of ranks have the bits of those of one: see TableShardTest. */
    @Test(timeOut = 60_000)
    public void theGradientHasTheBitsOfTheWhole() {
        Block one = embedding(13).build();
        Assert.assertEquals(counts(TENSOR_1, one, FEATURES).toString(), "none");
        for (int ranks = 2; ranks <= 4; ranks++) {
            TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
            CollectiveCounts counts = counts(kind, embedding(13).build(), FEATURES);
            Assert.assertEquals(counts.toString(), "1 all-reduce");
            for (int vocabulary : new int[] {16, 13, 15}) {
                ArrayAssert.assertBitEqual(
                        lookups(kind, vocabulary, embedding(vocabulary).build())
                                .getWeights()
                                .get(0),
                        lookups(TENSOR_1, vocabulary, embedding(vocabulary).build())
                                .getWeights()
                                .get(0),
                        ranks + " ranks of " + vocabulary);
            }
        }
    }

    /** The ids of all ranks, the sums of their rows, and the gradients of all. */
    @Test(timeOut = 60_000)
    public void gathersTheIdsInMixedMode() {
        CollectiveCounts counts = counts(MIXED_2, network(embedding(13).build()), 6);
        Assert.assertEquals(counts.get(Collective.REDUCE_SCATTER), 1);
        // of ids and of gradients; and the rows of the loss, which is none that we know
        Assert.assertEquals(counts.get(Collective.ALL_GATHER), 3);
    }

    @Test
    public void aMaskIsNotForIt() {
        Block block = Blocks.sequence(embedding(13).build());
        block.initialize(manager, DataType.FLOAT32, new Shape(1, 3));
        NDArray ids = manager.zeros(new Shape(1, 3), DataType.INT64);
        Refusals.throwsArgument(
                () ->
                        block.forward(
                                new ParameterStore(manager, false),
                                new NDList(ids, ids.onesLike()),
                                false),
                "VocabParallelEmbedding (13, ",
                "gets 2 arrays. A mask goes to the blocks that use it");
    }

    /** The ids of case 16, of all shapes and more types than DJL takes, with a chosen cut. */
    @Test(timeOut = 60_000)
    public void idsOfAnyShapeAndType() {
        long[] ids = {0, 3, 4, 7, 15, 15, 0, 2};
        Cut cut = Cut.ofLengths(1, 9, 6);
        for (DataType type : List.of(DataType.INT64, DataType.INT32, DataType.FLOAT32)) {
            for (Shape shape : List.of(new Shape(8), new Shape(2, 4), new Shape(2, 2, 2))) {
                Block block =
                        embedding(16).optShardingStrategy(ShardingStrategy.rowwise(cut)).build();
                TrainingRun.Loop rows =
                        (trainer, manager, numbers) -> {
                            boolean plain = !(trainer instanceof ParallelTrainer);
                            NDArray input = manager.create(ids).reshape(shape);
                            NDList data = new NDList(plain ? input : input.toType(type, false));
                            NDArray found = trainer.evaluate(data).head();
                            Assert.assertEquals(found.getShape(), shape.add(FEATURES));
                            for (float value : found.toFloatArray()) {
                                numbers.add(value);
                            }
                        };
                TrainerKind three = TENSOR_3;
                Block plain = new PlainEmbedding(16, FEATURES);
                Loss loss = new HalfSquareLoss();
                TrainingRun run = TrainingRun.of(three, block, loss, shape, rows);
                TrainingRun expected = TrainingRun.of(PLAIN, plain, loss, shape, rows);
                run.assertSame(expected, 0);
            }
        }
    }

    /** The row of the padding stays, and the others learn as they would. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void thePaddingHasNoGradient(TrainerKind kind) {
        for (int padding : new int[] {0, 12}) { // of the first and of the last rank
            TrainingRun with = lookups(kind, 13, embedding(13).optPaddingIndex(padding).build());
            TrainingRun without = lookups(PLAIN, 13, embedding(13).build());
            TrainingRun same = lookups(PLAIN, 13, embedding(13).optPaddingIndex(padding).build());
            with.assertSame(same, 1e-5);
            float[] initial = initial(13);
            for (int i = 0; i < initial.length; i++) {
                boolean padded = i / FEATURES == padding;
                float expected = padded ? initial[i] : without.getWeights().get(0)[i];
                Assert.assertEquals(with.getWeights().get(0)[i], expected, 1e-6f);
            }
        }
    }

    private static float[] initial(int vocabulary) {
        Block block = new PlainEmbedding(vocabulary, FEATURES);
        float[][] weights = new float[1][];
        TrainingRun.of(
                PLAIN,
                block,
                new HalfSquareLoss(),
                new Shape(5, 3),
                (trainer, manager, numbers) -> weights[0] = TrainingRun.weights(block).get(0));
        return weights[0];
    }

    /** Both ways, and while ranks hold the shards. */
    @Test(timeOut = 60_000)
    public void savesWhatDjlsEmbeddingSaves() throws IOException, MalformedModelException {
        Block trained = embedding(13).build();
        ByteArrayOutputStream whileTrained = new ByteArrayOutputStream();
        float[][] values = new float[1][];
        TrainingRun.of(
                TENSOR_3,
                trained,
                new HalfSquareLoss(),
                new Shape(2, 3),
                (trainer, manager, numbers) -> {
                    save(trainer, whileTrained);
                    trainer.close(); // hands the weights back
                    values[0] = TrainingRun.weights(trained).get(0);
                });
        PlainEmbedding plain = new PlainEmbedding(13, FEATURES);
        plain.loadParameters(manager, input(whileTrained));
        Assert.assertEquals(TrainingRun.weights(plain).get(0), values[0]);
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        plain.saveParameters(new DataOutputStream(bytes));
        VocabParallelEmbedding loaded = embedding(13).build();
        loaded.loadParameters(manager, input(bytes));
        NDArray ids = manager.create(new long[] {12, 0, 5});
        ParameterStore store = new ParameterStore(manager, false);
        Assert.assertEquals(
                loaded.forward(store, new NDList(ids), false).head(),
                plain.forward(store, new NDList(ids), false).head());
    }

    private static void save(Trainer trainer, ByteArrayOutputStream bytes) {
        Unchecked.run(
                () -> trainer.getModel().getBlock().saveParameters(new DataOutputStream(bytes)));
    }

    private static DataInputStream input(ByteArrayOutputStream bytes) {
        return new DataInputStream(new ByteArrayInputStream(bytes.toByteArray()));
    }

    /** DJL's embedding of words has the rows of its vocabulary. */
    @Test(timeOut = 60_000)
    public void loadsTheWordsOfDjl() throws IOException, MalformedModelException {
        DefaultVocabulary words =
                DefaultVocabulary.builder()
                        .add(Arrays.asList("a", "rose", "is", "a", "rose"))
                        .optUnknownToken("[unknown]")
                        .build();
        TrainableWordEmbedding djl =
                TrainableWordEmbedding.builder()
                        .setEmbeddingSize(FEATURES)
                        .setVocabulary(words)
                        .build();
        djl.initialize(manager, DataType.FLOAT32, new Shape(2));
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        djl.saveParameters(new DataOutputStream(bytes));
        VocabParallelEmbedding loaded = embedding((int) words.size()).build();
        loaded.loadParameters(manager, input(bytes));
        NDList ids = new NDList(manager.create(new long[] {words.getIndex("rose"), 0}));
        ParameterStore store = new ParameterStore(manager, false);
        Assert.assertEquals(
                loaded.forward(store, ids, false).head(), djl.forward(store, ids, false).head());
    }

    @Test
    public void whatABuilderRefuses() {
        for (VocabParallelEmbedding.Builder builder :
                List.of(
                        VocabParallelEmbedding.builder().setVocabularySize(3),
                        embedding(3).optPaddingIndex(3),
                        embedding(3).optShardingStrategy(ShardingStrategy.columnwise()),
                        embedding(3).optShardingStrategy(ShardingStrategy.replicate()))) {
            Refusals.throwsArgument(builder::build);
        }
    }
}
