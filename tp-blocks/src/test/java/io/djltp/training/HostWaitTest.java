package io.djltp.training;

import static io.djltp.testing.Blocks.attention;
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

import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.internal.collective.nccl.NcclDouble;
import io.djltp.internal.torch.HostReads;
import io.djltp.launch.Backend;
import io.djltp.loss.OneVsAllLoss;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;
import io.djltp.rank.LossScaling;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainingRun;

import org.testng.SkipException;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.List;

/**
 * Which waits of the host for its device a training step has, on the double of CUDA and NCCL: the
 * ranks are on the CPU and take the path of GPUs. Calls of CUDA that wait are counted by the
 * double. The library counts the reads of numbers, each of which is a wait on a GPU, and its
 * uploads, which are none.
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

    /** Returns networks, and how often each of the ranks reads and uploads in a step. */
    @DataProvider
    public static Object[][] networks() {
        Loss plain = new VocabParallelCrossEntropyLoss();
        LossOptions options = LossOptions.DEFAULT;
        Loss weighted = loss(options.withClassWeights(1, 2, 1, 1, 1, 3, 1, 1));
        Loss smoothed = loss(new LossOptions(options.ignoreIndex(), 0.1f, 0));
        Shape rows = new Shape(8, 12);
        Block bag = sequence(new EmbeddingBag(20, 6), head().build());
        return new Object[][] {
            {"MLP, DJL's loss", mlp(true), Loss.softmaxCrossEntropyLoss(), null, rows, 0, 0},
            // the mean over the ranks
            {"batch cut", mlp(true), Loss.softmaxCrossEntropyLoss(), null, rows, 1, 0},
            // whether all gradients are finite
            {"scaled loss", mlp(true), Loss.softmaxCrossEntropyLoss(), SCALING, rows, 1, 0},
            // labels and statistics of the rows at once; factors of the gradient
            {"MLP, cut loss", mlp(false), plain, null, rows, 1, 1},
            {"encoder", encoder(), plain, null, new Shape(2, 4, 12), 1, 1},
            // labels, then statistics; in each pass labels' numbers and their places in chunks, and
            // between the two the factors of the gradient
            {"head", head(head()), plain, null, rows, 2, 5},
            {"class weights", head(head()), weighted, null, rows, 2, 5},
            {"smoothed", head(head()), smoothed, null, rows, 2, 5},
            // the rows of labels, for their cosines
            {
                "margin",
                head(head().optBias(false).optMargin(Margin.cosFace(4, 0.1f))),
                plain,
                null,
                rows,
                2,
                7
            },
            // the sample, in each pass
            {"sampled", head(head().optSampleShare(0.9f)), plain, null, rows, 2, 7},
            // the loss of the rank, which is summed, but no factors
            {"one-vs-all", head(head()), OneVsAllLoss.binaryCrossEntropy(), null, rows, 2, 6},
            // the rows of the bags, in a read and two uploads
            {"embedding bag", bag, plain, null, new Shape(8, 3), 3, 7},
        };
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void theHostDoesNotWaitForOperations(
            String name,
            Block network,
            Loss loss,
            LossScaling scaling,
            Shape shape,
            int reads,
            int uploads)
            throws Exception {
        DefaultTrainingConfig config = Configs.of(loss, Configs.adam(0.01f));
        boolean cut = name.equals("batch cut");
        ParallelConfig.Builder builder =
                Ranks.builder(cut ? ParallelMode.DATA : ParallelMode.TENSOR, RANKS)
                        .optBackend(Backend.NCCL);
        if (scaling != null) {
            builder.optLossScaling(scaling);
        }
        ParallelConfig ranks = builder.build();
        try (Model model = Blocks.model(network);
                ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
                NDManager manager = trainer.getManager().newSubManager()) {
            boolean ids = shape.get(1) == 3;
            NDArray data =
                    ids
                            ? manager.arange(1, 25, 1, DataType.INT64).mod(20).reshape(shape)
                            : manager.randomUniform(-1, 1, shape);
            NDArray labels =
                    manager.arange(8f)
                            .toType(DataType.INT64, false)
                            .reshape(shape.slice(0, shape.dimension() - 1));
            trainer.initialize(data.getShape());
            float first = step(trainer, data.duplicate(), labels.duplicate());
            for (int i = 2; i < FIRST; i++) {
                step(trainer, data.duplicate(), labels.duplicate());
            }
            long waits = NcclDouble.hostWaits();
            long ofStreams = NcclDouble.streamWaits();
            long read = HostReads.getCount();
            long uploaded = HostReads.getUploads();
            float last = 0;
            for (int i = 0; i < STEPS; i++) {
                last = step(trainer, data.duplicate(), labels.duplicate());
            }
            assertEquals(NcclDouble.hostWaits() - waits, 0, name);
            long perRank = (long) RANKS * STEPS;
            double[] counts = {HostReads.getCount() - read, HostReads.getUploads() - uploaded};
            double[] expected = {reads * perRank, uploads * perRank};
            assertEquals(counts, expected, name + ": " + Arrays.toString(counts));
            assertTrue(NcclDouble.streamWaits() > ofStreams, name);
            assertEquals(NcclDouble.live().get(4), 0L, "threads on no GPU of theirs");
            assertTrue(last < first, first + " " + last); // what was computed is right
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
        ParallelConfig ranks = Ranks.builder(ParallelMode.TENSOR, 4).optBackend(backend).build();
        DefaultTrainingConfig config =
                Configs.of(new VocabParallelCrossEntropyLoss(), Configs.adam(0.001f));
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Blocks.model(transformer());
                ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
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

    private static Block transformer() {
        return sequence(
                linear(12),
                ParallelTransformerEncoderLayer.builder()
                        .setAttention(attention(12, 4).build())
                        .setMlp(Blocks.mlp(12, 13).build())
                        .setNorm(() -> LayerNorm.builder().axis(2).build())
                        .optRecompute(true)
                        .build(),
                new LambdaBlock(arrays -> new NDList(arrays.head().mean(new int[] {1}))),
                ClassificationHead.builder().setUnits(9).build());
    }

    private static Block mlp(boolean whole) {
        return sequence(column(16), relu(), row(12), whole ? linear(8) : column(8));
    }

    private static Block encoder() {
        ParallelMultiHeadAttention attention = attention(12, 2).optDropout(0.1f).build();
        ParallelMlp mlp = Blocks.mlp(12, 24).build();
        Block layer =
                ParallelTransformerEncoderLayer.builder()
                        .setAttention(attention)
                        .setMlp(mlp)
                        .setNorm(() -> LayerNorm.builder().axis(2).build())
                        .optDropout(0.1f)
                        .build();
        return sequence(layer, column(8));
    }

    private static Loss loss(LossOptions options) {
        return new VocabParallelCrossEntropyLoss("loss", options);
    }

    private static ClassificationHead.Builder head() {
        return ClassificationHead.builder().setUnits(8);
    }

    private static Block head(ClassificationHead.Builder head) {
        return sequence(linear(6), head.build());
    }
}
