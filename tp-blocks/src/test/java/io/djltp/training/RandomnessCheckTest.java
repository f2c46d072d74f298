package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.scattered;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.steps;

import static org.testng.Assert.assertFalse;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.recurrent.LSTM;
import ai.djl.nn.transformer.BertBlock;
import ai.djl.nn.transformer.TransformerEncoderBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.PairList;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ParallelDropout;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.Network;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Supplier;

/**
 * Random draws where all ranks compute alike throw before the first step, however they come about;
 * those in a data-parallel body, and dropout that never draws, do not.
 */
public class RandomnessCheckTest {

    private static final int ROWS = 6;
    private static final int TIMES = 3;
    private static final int FEATURES = 4;
    private static final int CLASSES = 7;
    private static final Network.Batches BATCHES = Network.batches("6x3x4", "6:7");

    /** Networks that draw, which part of them, and what an error has to name. */
    private enum Drawing {
        CHILD(() -> Dropout.builder().optRate(0.3f).build(), "ai.djl.nn.norm.Dropout"),
        ENCODER(() -> encoder(0.1f), "ai.djl.nn.norm.Dropout"),
        BERT(RandomnessCheckTest::bert, "ai.djl.nn.norm.Dropout"),
        LAYERS(() -> lstm(2, 0.2f), "LSTM.forwardInternal"),
        FIELD(() -> new Fields(0.4f, 0), "Fields.forwardInternal"),
        MAP(() -> new Fields(0.4f, 1), "Fields.forwardInternal"),
        ARRAY(() -> new Fields(0.4f, 2), "Fields.forwardInternal"),
        FUNCTION(
                () -> new LambdaBlock(x -> Dropout.dropout(x.head(), 0.5f, true)),
                "called by io.djltp.training.RandomnessCheckTest$Drawing.lambda"),
        NOISE(() -> map(RandomnessCheckTest::noise), "RandomnessCheckTest.noise");

        private final Supplier<Block> block;
        private final String name;

        Drawing(Supplier<Block> block, String name) {
            this.block = block;
            this.name = name;
        }
    }

    @DataProvider
    public Object[][] drawings() {
        return TrainerKind.rows(List.of(Drawing.values()));
    }

    /** The ranks of a tensor group have the same rows, before a cut layer too. */
    @Test(dataProvider = "drawings", timeOut = 60_000)
    public void whereAllRanksComputeAlike(Drawing drawing) {
        for (TrainerKind kind : List.of(TENSOR_2, TENSOR_3, MESH_2X2)) {
            assertThrows(kind, drawing, bodyThenHead(drawing.block.get()));
            assertThrows(kind, drawing, headThenTail(drawing.block.get()));
        }
        for (TrainerKind kind : List.of(MIXED_2, MIXED_3)) { // behind the gather
            assertThrows(kind, drawing, headThenTail(drawing.block.get()));
            Block reversed = headAddedFirst(linear(FEATURES));
            assertThrows(kind, drawing, sequence(reversed, drawing.block.get(), end()));
        }
    }

    /** There the masks are the rank's own, whatever the order of the children. */
    @Test(dataProvider = "drawings", timeOut = 60_000)
    public void inADataParallelBody(Drawing drawing) {
        for (TrainerKind kind : List.of(MIXED_2, MIXED_3, DATA_2, DATA_3)) {
            train(kind, bodyThenHead(drawing.block.get()));
            train(kind, sequence(headAddedFirst(drawing.block.get()), end()));
        }
        train(TENSOR_1, bodyThenHead(drawing.block.get()));
    }

    /** Where the batch is cut again, the ranks may draw again; between cut layers they may not. */
    @Test(timeOut = 60_000)
    public void afterAndBetweenLayersThatAreCut() {
        for (TrainerKind kind : List.of(TENSOR_2, MIXED_2)) {
            for (boolean between : new boolean[] {false, true}) {
                Block draw = map(RandomnessCheckTest::noise);
                Block none = map(NDArray::neg);
                Block block =
                        sequence(
                                Blocks.head(5),
                                between ? draw : none,
                                scattered(3),
                                between ? none : draw);
                if (between || kind == TENSOR_2) {
                    expect(UnsupportedOperationException.class, () -> forward(kind, block));
                } else {
                    forward(kind, block);
                }
            }
        }
    }

    private static void forward(TrainerKind kind, Block block) {
        TrainingRun.of(
                kind,
                block,
                new VocabParallelCrossEntropyLoss(),
                new Shape(ROWS, 4),
                (trainer, m, n) -> trainer.forward(new NDList(m.ones(new Shape(ROWS, 4)))));
    }

    @Test(dataProvider = "drawings", timeOut = 60_000)
    public void theCheckCanBeSwitchedOff(Drawing drawing) {
        ParallelConfig config =
                Ranks.builder(ParallelMode.TENSOR, 2)
                        .optRandomCheck(false)
                        .optDriftCheck(0) // which would see what comes of it
                        .build();
        assertFalse(config.isRandomCheck());
        try (Model model = Blocks.model(headThenTail(drawing.block.get()))) {
            DefaultTrainingConfig training = Configs.of(new VocabParallelCrossEntropyLoss());
            try (Trainer trainer = new ParallelTrainer(model, training, config)) {
                steps(trainer, new ArrayList<>(), BATCHES, 0, 1);
            }
        }
    }

    /** What other threads draw, to load data for instance, is no concern of the ranks. */
    @Test(timeOut = 60_000)
    public void otherThreadsMayDraw() throws Exception {
        AtomicBoolean over = new AtomicBoolean();
        Thread loader =
                new Thread(
                        () -> {
                            try (NDManager manager = NDManager.newBaseManager()) {
                                while (!over.get()) {
                                    manager.randomNormal(new Shape(100)).close();
                                }
                            }
                        });
        loader.start();
        try {
            for (TrainerKind kind : List.of(TENSOR_2, DATA_2, MIXED_2)) {
                train(kind, headThenTail(ParallelDropout.builder().optRate(0.2f).build()));
            }
        } finally {
            over.set(true);
            loader.join();
        }
    }

    /** What has a rate of 0 does not draw, nor does an LSTM of one layer with any rate. */
    @Test(timeOut = 120_000)
    public void dropoutThatNeverDraws() {
        List<Supplier<Block>> bodies =
                List.of(
                        () -> Dropout.builder().optRate(0).build(),
                        () -> encoder(0),
                        () -> sequence(encoder(0), encoder(0)),
                        () -> lstm(1, 0.2f),
                        () -> lstm(2, 0),
                        () -> new Fields(0, 0));
        for (Supplier<Block> body : bodies) {
            TrainingRun expected = train(PLAIN, bodyThenHead(body.get()));
            for (TrainerKind kind : List.of(TENSOR_2, TENSOR_3)) {
                train(kind, bodyThenHead(body.get())).assertSame(expected, 2e-5);
            }
        }
    }

    private static void assertThrows(TrainerKind kind, Drawing drawing, Block block) {
        expect(
                UnsupportedOperationException.class,
                () -> train(kind, block),
                drawing.name,
                "same mask .. io.djltp.nn.ParallelDropout .. data-parallel body",
                "optRandomCheck(false)");
    }

    /** The body maps [rows, times, features] to the same shape. */
    private static Block bodyThenHead(Block body) {
        Block mean = map(RandomnessCheckTest::mean);
        Block network = sequence(linear(FEATURES), body, mean, Blocks.head(CLASSES));
        // the gradient of the bias of attention's keys is 0 but for rounding
        network.setInitializer(new NormalInitializer(0.1f), Parameter.Type.BIAS);
        return network;
    }

    private static Block headThenTail(Block tail) {
        return sequence(gathered(FEATURES), tail, end());
    }

    private static Block end() {
        return sequence(map(RandomnessCheckTest::mean), column(CLASSES));
    }

    /** The tree has the layer that gathers the batch before the body that it comes after. */
    private static Block headAddedFirst(Block body) {
        return new GraphBlock(
                        new Shape(TIMES, FEATURES),
                        (call, input) -> call.list("head", call.call("body", input.head())))
                .add("head", gathered(FEATURES), TIMES, FEATURES)
                .add("body", body, TIMES, FEATURES);
    }

    private static NDArray mean(NDArray x) {
        return x.mean(new int[] {1});
    }

    private static NDArray noise(NDArray x) {
        return x.add(x.getManager().randomNormal(x.getShape()));
    }

    private static Block lstm(int layers, float rate) {
        return LSTM.builder()
                .setStateSize(FEATURES)
                .setNumLayers(layers)
                .optDropRate(rate)
                .optReturnState(false)
                .build();
    }

    private static Block encoder(float rate) {
        return new TransformerEncoderBlock(FEATURES, 2, 5, rate, Activation::relu);
    }

    /**
     * DJL's BERT over the numbers of the batch, rounded; it returns its sequence. In DJL 0.35.1 its
     * encoders have a rate of 0.1 whatever the builder is told.
     */
    private static Block bert() {
        BertBlock bert =
                BertBlock.builder()
                        .setTokenDictionarySize(5)
                        .optTypeDictionarySize(2)
                        .optEmbeddingSize(FEATURES)
                        .optTransformerBlockCount(1)
                        .optAttentionHeadCount(2)
                        .optHiddenSize(5)
                        .optHiddenDropoutProbability(0)
                        .optMaxSequenceLength(TIMES)
                        .build();
        return sequence(
                new LambdaBlock(RandomnessCheckTest::tokens),
                bert,
                new LambdaBlock(x -> new NDList(x.head())));
    }

    private static NDList tokens(NDList x) {
        NDArray ids = x.head().sum(new int[] {2}).abs().toType(DataType.INT64, false);
        NDArray zeros = ids.zerosLike();
        return new NDList(ids.minimum(4), zeros, zeros.add(1));
    }

    private static TrainingRun train(TrainerKind kind, Block block) {
        Optimizer sgd = Configs.sgd(0.1f, 0.5f);
        Loss loss = new VocabParallelCrossEntropyLoss();
        return TrainingRun.of(kind, block, Configs.of(loss, sgd), BATCHES, 2);
    }

    /** Dropout in fields that DJL does not know of; one of them is used. */
    private static final class Fields extends AbstractBlock {
        private final Block single;
        private final Map<String, Block> map;
        private final Block[][] array;

        Fields(float rate, int where) {
            super((byte) 1);
            Block dropout = Dropout.builder().optRate(rate).build();
            single = where == 0 ? dropout : null;
            map = where == 1 ? Map.of("some", dropout) : Map.of();
            array = where == 2 ? new Block[][] {{}, {dropout}} : null;
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList inputs, boolean training, PairList<String, Object> p) {
            Block field = map.isEmpty() ? single : map.get("some");
            Block used = field == null ? array[1][0] : field;
            return used.forward(store, inputs, training);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return inputShapes;
        }

        @Override
        public void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            // there are none
        }
    }
}
