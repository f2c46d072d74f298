package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainingRun.step;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;

import io.djltp.internal.collective.nccl.NcclDouble;
import io.djltp.internal.torch.HostReads;
import io.djltp.launch.Backend;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;
import io.djltp.rank.LossScaling;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainingRun;

import org.testng.SkipException;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

/**
 * Which waits of the host for its device a training step has, on the double of CUDA and NCCL: the
 * ranks are on the CPU and take the path of GPUs. Calls of CUDA that wait are counted by the
 * double, and reads of numbers by the library, which on a GPU are such calls of libtorch.
 */
public class HostWaitTest {

    private static final int RANKS = 2;
    private static final int FIRST = 5; // drift checks, which read, are due at 1, 2, 4 and 8
    private static final int STEPS = 3;
    private static final LossScaling SCALING = LossScaling.builder().build();

    /** Takes the path of GPUs. */
    @BeforeClass
    public void setUp() {
        if (!"nccl".equals(System.getProperty("io.djltp.backend"))) {
            throw new SkipException("This test runs with the double of NCCL");
        }
        NcclDouble.load();
        NcclDouble.computeInStreams(true);
    }

    /** Lets the tests that follow take the path of the CPU. */
    @AfterClass
    public void tearDown() {
        NcclDouble.computeInStreams(false);
    }

    /** Returns networks, and how many numbers each of the ranks reads in a step. */
    @DataProvider
    public static Object[][] networks() {
        return new Object[][] {
            {"MLP, DJL's loss", mlp(true), Loss.softmaxCrossEntropyLoss(), null, 0},
            // whether all gradients are finite
            {"scaled loss", mlp(true), Loss.softmaxCrossEntropyLoss(), SCALING, 1},
            // labels; sums, and whether all logits are minus infinity; what is above the loss
            {"MLP, cut loss", mlp(false), new VocabParallelCrossEntropyLoss(), null, 3},
            // labels; whether the pass can be used; sums of all ranks; above the loss
            {"fused head", head(), new VocabParallelCrossEntropyLoss(), null, 4},
        };
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void theHostDoesNotWaitForOperations(
            String name, Block network, Loss loss, LossScaling scaling, int reads)
            throws Exception {
        DefaultTrainingConfig config = Configs.of(loss, Configs.adam(0.01f));
        ParallelConfig.Builder builder =
                ParallelConfig.builder()
                        .setMode(ParallelMode.TENSOR)
                        .setRanks(RANKS)
                        .optBackend(Backend.NCCL);
        if (scaling != null) {
            builder.optLossScaling(scaling);
        }
        ParallelConfig ranks = builder.build();
        try (Model model = Model.newInstance("waits")) {
            model.setBlock(network);
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
                    NDManager manager = trainer.getManager().newSubManager()) {
                NDArray data = manager.randomUniform(-1, 1, new Shape(8, 12));
                NDArray labels = manager.arange(8f).toType(DataType.INT64, false);
                trainer.initialize(data.getShape());
                float first = step(trainer, data.duplicate(), labels.duplicate());
                for (int i = 2; i < FIRST; i++) {
                    step(trainer, data.duplicate(), labels.duplicate());
                }
                long waits = NcclDouble.hostWaits();
                long ofStreams = NcclDouble.streamWaits();
                long read = HostReads.getCount();
                float last = 0;
                for (int i = 0; i < STEPS; i++) {
                    last = step(trainer, data.duplicate(), labels.duplicate());
                }
                assertEquals(NcclDouble.hostWaits() - waits, 0, name);
                assertEquals(HostReads.getCount() - read, (long) reads * RANKS * STEPS, name);
                assertTrue(NcclDouble.streamWaits() > ofStreams, name);
                assertEquals(NcclDouble.live().get(4), 0L, "threads on no GPU of theirs");
                assertTrue(last < first, first + " " + last); // what was computed is right
            }
        }
    }

    /**
     * A transformer that is recomputed, and a head: each loss, and what is learned, bit for bit.
     */
    @Test(groups = "sweep", timeOut = 600_000)
    public void aThousandStepsAreThoseOfThreads() throws Exception {
        ArrayAssert.assertAllBitEqual(
                trained(Backend.NCCL, 1000), trained(Backend.LOCAL, 1000), "on streams");
        // no thread took memory of a GPU that is not its own
        assertEquals(NcclDouble.live().get(4), 0L);
    }

    private static List<float[]> trained(Backend backend, int steps) throws Exception {
        ParallelConfig ranks =
                ParallelConfig.builder()
                        .setMode(ParallelMode.TENSOR)
                        .setRanks(4)
                        .optBackend(backend)
                        .build();
        DefaultTrainingConfig config =
                Configs.of(new VocabParallelCrossEntropyLoss(), Configs.adam(0.001f));
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("streams")) {
            model.setBlock(transformer());
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
                    NDManager manager = trainer.getManager().newSubManager()) {
                trainer.initialize(new Shape(8, 5, 12));
                float[] losses = new float[steps];
                for (int i = 0; i < steps; i++) {
                    try (NDManager own = manager.newSubManager()) {
                        NDArray data = TrainingRun.random(own, i % 10, 8, 5, 12);
                        losses[i] = step(trainer, data, TrainingRun.labels(own, i % 10, 8, 9));
                    }
                }
                NDList rows = new NDList(TrainingRun.random(manager, 3, 8, 5, 12));
                return List.of(losses, trainer.evaluate(rows).head().toFloatArray());
            }
        }
    }

    private static Block transformer() {
        return sequence(
                linear(12),
                ParallelTransformerEncoderLayer.builder()
                        .setAttention(
                                ParallelMultiHeadAttention.builder()
                                        .setEmbeddingSize(12)
                                        .setHeads(4)
                                        .build())
                        .setMlp(ParallelMlp.builder().setUnits(12).setHiddenFeatures(13).build())
                        .setNorm(() -> LayerNorm.builder().axis(2).build())
                        .optRecompute(true)
                        .build(),
                new LambdaBlock(arrays -> new NDList(arrays.head().mean(new int[] {1}))),
                ClassificationHead.builder().setUnits(9).build());
    }

    private static Block mlp(boolean whole) {
        return sequence(column(16), relu(), row(12), whole ? linear(8) : column(8));
    }

    private static Block head() {
        return sequence(linear(6), ClassificationHead.builder().setUnits(8).build());
    }
}
