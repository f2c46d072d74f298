package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.scattered;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

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
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.recurrent.LSTM;
import ai.djl.nn.transformer.BertBlock;
import ai.djl.nn.transformer.TransformerEncoderBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.util.PairList;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ParallelDropout;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Blocks;
import io.djltp.testing.GraphBlock;
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
 * Random draws where all ranks compute alike are refused before the first step, however they come
 * about; those in a data-parallel body, and dropout that never draws, are not.
 */
public class RandomnessCheckTest {

    private static final int ROWS = 6;
    private static final int TIMES = 3;
    private static final int FEATURES = 4;
    private static final int CLASSES = 7;

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
        NOISE(() -> new LambdaBlock(RandomnessCheckTest::noise), "RandomnessCheckTest.noise");

        private final Supplier<Block> block;
        private final String[] names;

        Drawing(Supplier<Block> block, String... names) {
            this.block = block;
            this.names = names;
        }
    }

    @DataProvider
    public Object[][] drawings() {
        List<Object[]> rows = new ArrayList<>();
        for (Drawing drawing : Drawing.values()) {
            for (int ranks : new int[] {2, 3}) {
                rows.add(new Object[] {drawing, ranks});
            }
        }
        return rows.toArray(new Object[0][]);
    }

    @Test(dataProvider = "drawings", timeOut = 60_000)
    public void inTensorMode(Drawing drawing, int ranks) {
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
        assertRefused(kind, drawing, bodyThenHead(drawing.block.get()));
        assertRefused(kind, drawing, headThenTail(drawing.block.get()));
    }

    /** The ranks of a tensor group have the same rows, before a cut layer too. */
    @Test(timeOut = 60_000)
    public void onAMesh() {
        TrainerKind kind = MESH_2X2;
        for (Drawing drawing : List.of(Drawing.CHILD, Drawing.FIELD, Drawing.FUNCTION)) {
            assertRefused(kind, drawing, bodyThenHead(drawing.block.get()));
            assertRefused(kind, drawing, headThenTail(drawing.block.get()));
        }
    }

    @Test(dataProvider = "drawings", timeOut = 60_000)
    public void afterTheGatherInMixedMode(Drawing drawing, int ranks) {
        TrainerKind kind = new TrainerKind(ParallelMode.MIXED, ranks);
        Block block = headThenTail(drawing.block.get());
        assertRefused(kind, drawing, block);
        Block reversed = headAddedFirst(linear(FEATURES));
        reversed = sequence(reversed, drawing.block.get(), end());
        assertRefused(kind, drawing, reversed);
    }

    /** There the masks are the rank's own, whatever the order of the children. */
    @Test(dataProvider = "drawings", timeOut = 60_000)
    public void inADataParallelBody(Drawing drawing, int ranks) {
        for (ParallelMode mode : new ParallelMode[] {ParallelMode.MIXED, ParallelMode.DATA}) {
            TrainerKind kind = new TrainerKind(mode, ranks);
            train(kind, bodyThenHead(drawing.block.get()));
            Block reversed = headAddedFirst(drawing.block.get());
            train(kind, sequence(reversed, end()));
        }
        train(TENSOR_1, bodyThenHead(drawing.block.get()));
    }

    /** Where the batch is cut again, the ranks may draw again; between cut layers they may not. */
    @Test(timeOut = 60_000)
    public void afterAndBetweenLayersThatAreCut() {
        for (ParallelMode mode : new ParallelMode[] {ParallelMode.TENSOR, ParallelMode.MIXED}) {
            for (boolean between : new boolean[] {false, true}) {
                Block draw = new LambdaBlock(RandomnessCheckTest::noise);
                SequentialBlock block = new SequentialBlock();
                block.add(Blocks.head(5));
                block.add(between ? draw : new LambdaBlock(x -> new NDList(x.head().neg())));
                block.add(scattered(3));
                block.add(between ? new LambdaBlock(x -> new NDList(x.head().neg())) : draw);
                if (between || mode == ParallelMode.TENSOR) {
                    expectThrows(UnsupportedOperationException.class, () -> forward(mode, block));
                } else {
                    forward(mode, block);
                }
            }
        }
    }

    private static void forward(ParallelMode mode, Block block) {
        try (Model model = Model.newInstance("net")) {
            model.setBlock(block);
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss());
            try (Trainer trainer = new TrainerKind(mode, 2).open(model, config)) {
                trainer.forward(new NDList(trainer.getManager().ones(new Shape(ROWS, 4))));
            }
        }
    }

    @Test(timeOut = 60_000)
    public void theCheckCanBeSwitchedOff() {
        for (Drawing drawing : Drawing.values()) {
            ParallelConfig config =
                    ParallelConfig.builder()
                            .setMode(ParallelMode.TENSOR)
                            .setRanks(2)
                            .optRandomCheck(false)
                            .optDriftCheck(0) // which would see what comes of it
                            .build();
            assertFalse(config.isRandomCheck());
            try (Model model = Model.newInstance("net")) {
                model.setBlock(headThenTail(drawing.block.get()));
                DefaultTrainingConfig training =
                        new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss());
                try (Trainer trainer = new ParallelTrainer(model, training, config)) {
                    step(trainer, trainer.getManager());
                }
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
            for (ParallelMode mode : ParallelMode.values()) {
                Block block = ParallelDropout.builder().optRate(0.2f).build();
                train(new TrainerKind(mode, 2), headThenTail(block));
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
            for (int ranks : new int[] {2, 3}) {
                TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
                train(kind, bodyThenHead(body.get())).assertSame(expected, 2e-5);
            }
        }
    }

    private static void assertRefused(TrainerKind kind, Drawing drawing, Block block) {
        Throwable e = expectThrows(UnsupportedOperationException.class, () -> train(kind, block));
        List<String> parts = new ArrayList<>(List.of(drawing.names));
        parts.add("same mask");
        parts.add("io.djltp.nn.ParallelDropout");
        parts.add("data-parallel body");
        parts.add("optRandomCheck(false)");
        for (String part : parts) {
            assertTrue(e.getMessage().contains(part), part + " in: " + e.getMessage());
        }
    }

    /** The body maps [rows, times, features] to the same shape. */
    private static Block bodyThenHead(Block body) {
        Block network =
                sequence(
                        linear(FEATURES),
                        body,
                        new LambdaBlock(RandomnessCheckTest::mean),
                        Blocks.head(CLASSES));
        // the gradient of the bias of attention's keys is 0 but for rounding
        network.setInitializer(new NormalInitializer(0.1f), Parameter.Type.BIAS);
        return network;
    }

    private static Block headThenTail(Block tail) {
        return sequence(head(), tail, end());
    }

    private static Block head() {
        return gathered(FEATURES);
    }

    private static Block end() {
        return sequence(new LambdaBlock(RandomnessCheckTest::mean), column(CLASSES));
    }

    private static NDList mean(NDList x) {
        return new NDList(x.head().mean(new int[] {1}));
    }

    private static NDList noise(NDList x) {
        NDArray input = x.head();
        return new NDList(input.add(input.getManager().randomNormal(input.getShape())));
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
                new LambdaBlock(
                        x -> {
                            NDArray ids = x.head().sum(new int[] {2}).abs();
                            ids = ids.toType(DataType.INT64, false);
                            NDArray zeros = ids.zerosLike();
                            return new NDList(ids.minimum(4), zeros, zeros.add(1));
                        }),
                bert,
                new LambdaBlock(x -> new NDList(x.head())));
    }

    private static TrainingRun train(TrainerKind kind, Block block) {
        return TrainingRun.of(
                kind,
                block,
                new VocabParallelCrossEntropyLoss(),
                new Shape(ROWS, TIMES, FEATURES),
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 2; i++) {
                        numbers.add(step(trainer, manager));
                    }
                });
    }

    private static float step(Trainer trainer, NDManager manager) {
        NDArray data = random(manager, 1, ROWS, TIMES, FEATURES);
        NDArray labels = labels(manager, 1, ROWS, CLASSES);
        float loss = backward(trainer, data, labels);
        trainer.step();
        return loss;
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
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            Block used = single;
            if (used == null) {
                used = map.isEmpty() ? array[1][0] : map.get("some");
            }
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

    /** The tree has the layer that gathers the batch before the body that it comes after. */
    private static Block headAddedFirst(Block body) {
        return new GraphBlock(
                        new Shape(TIMES, FEATURES),
                        (call, input) -> call.list("head", call.call("body", input.head())))
                .add("head", head(), TIMES, FEATURES)
                .add("body", body, TIMES, FEATURES);
    }
}
