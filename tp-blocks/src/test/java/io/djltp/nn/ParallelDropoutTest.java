package io.djltp.nn;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.Dropout;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;

import io.djltp.job.Job;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.Refusals;
import io.djltp.testing.ThreadedJob;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.UnaryOperator;

/**
 * What a network with dropout learns does not depend on the number of ranks, wherever the dropout
 * is: where all ranks compute alike, where each has its rows, where each has its features.
 */
public class ParallelDropoutTest {

    private static final int ROWS = 7; // uneven over 2 and more ranks
    private static final int TOKENS = 6;
    private static final int FEATURES = 4;
    private static final int CLASSES = 9;
    private static final int STEPS = 4;
    private static final double TOLERANCE = 5e-6; // fp32: a few steps with sums in another order

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void theNumberOfRanksDoesNotMatter(TrainerKind kind) {
        TrainerKind one = TENSOR_1;
        TrainingRun expected = train(one, network(0.4f));
        train(kind, network(0.4f)).assertSame(expected, TOLERANCE);
        train(kind, heads()).assertSame(train(one, heads()), TOLERANCE);
    }

    /** Features that a rank divides to heads: their masks are those of the whole. */
    private static Block heads() {
        return sequence(
                head(24),
                map(x -> x.reshape(x.getShape().get(0), TOKENS, -1, 2)),
                dropout(5),
                map(x -> x.reshape(x.getShape().get(0), TOKENS, -1)),
                row(5),
                column(CLASSES));
    }

    /** Where features or rows lie elsewhere, no rank knows the places of its own in the whole. */
    @Test(timeOut = 120_000)
    public void axesInAnotherOrderAreRefused() {
        UnaryOperator<NDArray> swap = x -> x.swapAxes(1, 2);
        for (TrainerKind kind :
                List.of(
                        TENSOR_2, TENSOR_4, // as many features as tokens
                        MESH_2X3, MIXED_2)) {
            Block heads =
                    sequence(
                            head(24),
                            map(x -> x.reshape(x.getShape().get(0), TOKENS, -1, 2).swapAxes(1, 2)),
                            dropout(5),
                            map(x -> together(x)),
                            row(CLASSES));
            assertRefused(kind, heads, "ropout", "features");
            Block swapped = sequence(head(24), map(swap), dropout(5), map(swap), row(CLASSES));
            assertRefused(kind, swapped, "ropout", "features");
        }
        UnaryOperator<NDArray> rows = x -> x.swapAxes(0, 1);
        for (TrainerKind kind : List.of(DATA_2, DATA_3, TrainerKind.mesh(2, 1))) {
            Block swapped = sequence(linear(5), map(rows), dropout(5), map(rows), linear(CLASSES));
            assertRefused(kind, swapped, "ropout", "rows are not axis 0");
        }
    }

    private static NDArray together(NDArray x) {
        return x.swapAxes(1, 2).reshape(x.getShape().get(0), TOKENS, -1);
    }

    private static void assertRefused(TrainerKind kind, Block block, String... parts) {
        Refusals.expect(RuntimeException.class, () -> train(kind, block), parts);
    }

    @Test(timeOut = 60_000)
    public void theSameSeedGivesTheSameRun() {
        for (ParallelMode mode : ParallelMode.values()) {
            TrainerKind kind = new TrainerKind(mode, 3);
            TrainingRun first = train(kind, network(0.4f));
            train(kind, network(0.4f)).assertSame(first, 0);
            TrainingRun without = train(kind, network(0));
            Assert.assertThrows(AssertionError.class, () -> without.assertSame(first, 0.01));
        }
    }

    /** Each block and each call has a mask of its own; the seed is that of the engine. */
    @Test(timeOut = 60_000)
    public void masksOfCallsAndBlocks() {
        for (int ranks : new int[] {1, 2}) {
            TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
            float[][] one = masks(kind, 1, dropout());
            Assert.assertFalse(Arrays.equals(one[0], one[1]));
            Assert.assertEquals(masks(kind, 1, dropout()), one);
            Assert.assertFalse(Arrays.equals(masks(kind, 2, dropout())[0], one[0]));
            Assert.assertEquals(zeros(one[0]), 0.2, 0.01);
            for (float value : one[0]) {
                Assert.assertTrue(value == 0 || Math.abs(value - 1.25f) < 1e-6, "" + value);
            }
            // of two independent masks
            Assert.assertEquals(zeros(masks(kind, 1, dropout(), dropout())[0]), 0.36, 0.01);
            float[][] seeded = masks(kind, 1, dropout(5), dropout(5));
            Assert.assertEquals(zeros(seeded[0]), 0.2, 0.01);
            Assert.assertEquals(masks(kind, 2, dropout(5), dropout(5)), seeded);
        }
    }

    /** Evaluation is no call; a saved state goes on with the masks that would have come. */
    @Test(timeOut = 60_000)
    public void aStateGoesOnWhereItWasTaken() {
        ParallelDropout block = ParallelDropout.builder().optRate(0.2f).build();
        TrainerKind kind = TENSOR_2;
        Assert.assertNull(block.getState());
        try (Model model = model(block, 1);
                ParallelTrainer trainer = open(model, kind)) {
            trainer.initialize(new Shape(20, 30));
            mask(trainer);
            NDManager manager = trainer.getManager();
            NDArray ones = manager.ones(new Shape(2, 3));
            Assert.assertEquals(trainer.evaluate(new NDList(ones)).head(), ones);
            ParallelDropout.State state = block.getState();
            Assert.assertEquals(state.calls(), 1);
            float[] second = mask(trainer);
            float[] third = mask(trainer);
            block.setState(state);
            Assert.assertEquals(mask(trainer), second);
            ParallelDropout other = ParallelDropout.builder().optRate(0.2f).optSeed(9).build();
            Assert.assertEquals(other.getState(), new ParallelDropout.State(9, 0));
            other.setState(block.getState());
            try (Model otherModel = model(other, 4);
                    ParallelTrainer another = open(otherModel, TENSOR_3)) {
                Assert.assertEquals(mask(another), third);
            }
            try (Model again = model(block, 4);
                    ParallelTrainer another = open(again, kind)) {
                Assert.assertEquals(mask(another), third); // a second trainer of the block
            }
        }
    }

    @Test
    public void withAnOrdinaryStoreItIsTheDropoutOfDjl() throws Exception {
        try (NDManager manager = NDManager.newBaseManager()) {
            ParameterStore store = new ParameterStore(manager, false);
            Block[] blocks = {
                Dropout.builder().build(),
                ParallelDropout.builder().build(),
                Dropout.builder().optRate(0.2f).build(),
                ParallelDropout.builder().optRate(0.2f).build()
            };
            List<NDArray> outputs = new ArrayList<>();
            List<byte[]> files = new ArrayList<>();
            NDArray input = manager.ones(new Shape(20, 30));
            for (Block block : blocks) {
                block.initialize(manager, DataType.FLOAT32, input.getShape());
                Engine.getInstance().setRandomSeed(3);
                outputs.add(block.forward(store, new NDList(input), true).head());
                Assert.assertEquals(block.forward(store, new NDList(input), false).head(), input);
                ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                block.saveParameters(new DataOutputStream(bytes));
                files.add(bytes.toByteArray());
            }
            Assert.assertEquals(outputs.get(1), outputs.get(0));
            Assert.assertEquals(outputs.get(3), outputs.get(2));
            Assert.assertEquals(files.get(1), files.get(0));
            blocks[1].loadParameters(
                    manager, new DataInputStream(new ByteArrayInputStream(files.get(0))));
        }
    }

    /** The processes of a job may have seeds of their own: that of rank 0 counts. */
    @Test(timeOut = 60_000)
    public void allProcessesTakeTheSeedOfRankZero() throws Exception {
        List<List<Long>> all = ThreadedJob.run(ParallelDropoutTest::seeds);
        List<Long> seeds = all.get(0);
        Assert.assertEquals(all.get(1), seeds);
        Assert.assertNotEquals(seeds.get(0), seeds.get(1));
    }

    private static List<Long> seeds(Job job) {
        try (Model model = model(ParallelDropout.builder().build(), 1)) {
            ParallelConfig config = TENSOR_2.in(job).config();
            DefaultTrainingConfig training =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss());
            try (ParallelTrainer trainer = new ParallelTrainer(model, training, config)) {
                if (job.getProcess() == 0) {
                    Thread.sleep(500); // rank 1 has looked at the generator by then
                    model.getNDManager().randomNormal(new Shape(3)).close();
                }
                trainer.initialize(new Shape(2, 3));
                List<Long> seeds = new ArrayList<>();
                seeds.add(trainer.getRanks().getContext(0).getRandom().next());
                seeds.add(trainer.getRanks().getContext(0).getRandom().next());
                return seeds;
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    @Test(timeOut = 60_000)
    public void badInput() {
        for (float rate : new float[] {-0.1f, 1.1f, Float.NaN}) {
            Refusals.throwsArgument(
                    () -> ParallelDropout.builder().optRate(rate).build(),
                    "The rate of dropout must be from 0 to 1, not " + rate);
        }
        Block block =
                sequence(
                        ClassificationHead.builder().setUnits(CLASSES).build(),
                        ParallelDropout.builder().build());
        assertRefused(TENSOR_2, block, "put it before that layer");
    }

    private static Block network(float rate) {
        return sequence(
                        ParallelDropout.builder().optRate(rate / 2).build(),
                        linear(8),
                        tanh(),
                        ParallelDropout.builder().optRate(rate).build(),
                        head(11),
                        ParallelDropout.builder().optRate(rate).build()) // on slices of features
                .add(row(5))
                .add(ParallelDropout.builder().optRate(rate).build())
                .add(column(CLASSES));
    }

    private static TrainingRun train(TrainerKind kind, Block block) {
        return TrainingRun.of(
                kind,
                block,
                Configs.of(new VocabParallelCrossEntropyLoss(), Configs.sgd(0.1f, 0.5f)),
                Network.batches(
                        "%dx%dx%d".formatted(ROWS, TOKENS, FEATURES),
                        "%dx%d:%d".formatted(ROWS, TOKENS, CLASSES)),
                STEPS);
    }

    private static Model model(Block block, int seed) {
        Engine.getInstance().setRandomSeed(seed);
        Model model = Model.newInstance("net");
        model.setBlock(block);
        return model;
    }

    private static ParallelTrainer open(Model model, TrainerKind kind) {
        DefaultTrainingConfig config = Configs.of(new VocabParallelCrossEntropyLoss());
        return new ParallelTrainer(model, config, kind.config());
    }

    private static Block dropout() {
        return ParallelDropout.builder().optRate(0.2f).build();
    }

    private static Block dropout(long seed) {
        return ParallelDropout.builder().optRate(0.2f).optSeed(seed).build();
    }

    /** Returns the products of the masks of some blocks, in two training passes. */
    private static float[][] masks(TrainerKind kind, int seed, Block... blocks) {
        SequentialBlock network = new SequentialBlock();
        for (Block block : blocks) {
            network.add(block);
        }
        try (Model model = model(network, seed);
                ParallelTrainer trainer = open(model, kind)) {
            return new float[][] {mask(trainer), mask(trainer)};
        }
    }

    private static float[] mask(ParallelTrainer trainer) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDArray ones = manager.ones(new Shape(200, 300));
            return trainer.forward(new NDList(ones)).head().toFloatArray();
        }
    }

    private static double zeros(float[] mask) {
        int zeros = 0;
        for (float value : mask) {
            zeros += value == 0 ? 1 : 0;
        }
        return zeros / (double) mask.length;
    }
}
