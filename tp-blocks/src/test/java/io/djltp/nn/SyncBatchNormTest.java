package io.djltp.nn;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.flatten;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.newRow;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.table;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.DATA_4;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_3X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.MIXED_4;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.torch.Autograd;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.PlainEmbedding;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.util.Arrays;
import java.util.function.Function;

/** Batch normalization with the statistics of all ranks' rows is DJL's of the whole batch. */
public class SyncBatchNormTest extends RecordedTest {

    private static final int FEATURES = 5;
    private static final int[] ROWS = {7, 2, 3, 6}; // of the batches of the steps

    private static Block norm(boolean sync, int axis) {
        return sync
                ? SyncBatchNorm.builder().optAxis(axis).optMomentum(0.8f).build()
                : BatchNorm.builder().optAxis(axis).optMomentum(0.8f).build();
    }

    /** A bias before a normalization has no gradient but rounding errors. */
    private static Block linear(long units) {
        return Blocks.linear(units, false);
    }

    /** Returns the layers behind the data-parallel body. */
    private static Block end(boolean sync) {
        return sequence(first(sync, 8), tanh(), Blocks.row(sync, 4));
    }

    private static Block network(boolean sync, Block norm) {
        return sequence(linear(6), norm, tanh(), end(sync));
    }

    private static final Network.Batches SEVEN = Network.regression(7, FEATURES, 4);
    private static final Network.Batches FEW = // some leave ranks without a row
            (manager, step) -> Network.regression(ROWS[step % 4], FEATURES, 4).make(manager, step);
    private static final TrainerKind[] SOME = {DATA_3, MIXED_2, MESH_2X2};
    private static final TrainerKind[] FOUR = {DATA_4, MIXED_4, MESH_3X2};
    private static final TrainerKind[] MIXED = {MIXED_3, MIXED_4};

    private static Object[] row(
            String name,
            Function<Boolean, Block> block,
            Network.Batches batches,
            TrainerKind... kinds) {
        return new Object[] {name, block, batches, kinds};
    }

    /** Running statistics are among the parameters that are compared. */
    @DataProvider
    public Object[][] networks() {
        TrainerKind[] all =
                Arrays.stream(TrainerKind.parallel())
                        .map(row -> (TrainerKind) row[0])
                        .toArray(TrainerKind[]::new);
        return new Object[][] {
            // uneven parts: 7 rows over 2, 3 and 4 ranks
            row("rows", sync -> network(sync, norm(sync, 1)), SEVEN, all),
            row("few rows", sync -> network(sync, norm(sync, 1)), FEW, FOUR),
            // pixels count as rows do
            row("[rows, channels, 2, 3]", sync -> pixels(sync, 1, -1, 4, 2, 3), SEVEN, SOME),
            row("[rows, 6, channels]", sync -> pixels(sync, 2, -1, 6, 4), FEW, SOME),
            row("options", sync -> network(sync, withOptions(sync)), SEVEN, SOME[0]),
            // behind a layer that has gathered the batch all ranks have the whole
            row(
                    "behind the gather",
                    sync ->
                            sequence(
                                    linear(6),
                                    first(sync, 8),
                                    tanh(),
                                    Blocks.row(sync, 6),
                                    tanh(),
                                    norm(sync, 1)),
                    Network.regression(7, FEATURES, 6),
                    MIXED_3,
                    TENSOR_3),
            // ranks without a row of the output have one that does not count
            row(
                    "behind a row layer",
                    sync -> sequence(first(sync, 8), tanh(), scattered(sync), normed(sync)),
                    FEW,
                    MIXED),
            // four ids a row; their greatest features, too, must be found of such a row
            row(
                    "behind an embedding",
                    sync -> sequence(embedding(sync), map(x -> x.max(new int[] {1})), normed(sync)),
                    Network.batches(ROWS, "Rx4:11", "Rx4"),
                    MIXED)
        };
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void trainedAsByDjl(
            String name,
            Function<Boolean, Block> block,
            Network.Batches batches,
            TrainerKind... kinds) {
        Network.of(block, HalfSquareLoss::new, batches).assertEqual(kinds);
    }

    private static Block pixels(boolean sync, int axis, long... shape) {
        return sequence(linear(24), reshape(shape), norm(sync, axis), tanh(), flatten(), end(sync));
    }

    /** Without trained gamma and beta, and another epsilon. */
    private static Block withOptions(boolean sync) {
        return sync
                ? SyncBatchNorm.builder().optCenter(false).optScale(false).optEpsilon(0.1f).build()
                : BatchNorm.builder().optCenter(false).optScale(false).optEpsilon(0.1f).build();
    }

    private static Block normed(boolean sync) {
        Block norm = sync ? SyncBatchNorm.builder().build() : BatchNorm.builder().build();
        return sequence(norm, tanh(), end(sync));
    }

    /** A bias before a normalization has no gradient but rounding errors. */
    private static Block scattered(boolean sync) {
        return sync ? newRow(6).optBias(false).optBatchShardedOutput(true).build() : linear(6);
    }

    private static Block embedding(boolean sync) {
        return sync ? table(11, 6).build() : new PlainEmbedding(11, 6);
    }

    /** Means of 3000 and deviations of 0.1: the square of the mean has no digit left for them. */
    @Test(timeOut = 60_000)
    @SuppressWarnings("try") // a scope is used by being open
    public void largeMeans() {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(SyncBatchNorm.builder().optEpsilon(1e-9f).build());
            TrainerKind kind = DATA_3;
            try (Trainer trainer = kind.open(model, config())) {
                trainer.initialize(new Shape(7, 2));
                NDArray data = TrainingRun.random(manager, 3, 7, 2).mul(8).round().div(64);
                float[] output = null;
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDList batch = new NDList(data.add(3000)); // exact
                    output = trainer.forward(batch).singletonOrThrow().toFloatArray();
                }
                float[] values = data.toFloatArray();
                for (int c = 0; c < 2; c++) {
                    double mean = 0;
                    double squares = 0;
                    for (int i = c; i < 14; i += 2) {
                        mean += values[i] / 7.0;
                    }
                    for (int i = c; i < 14; i += 2) {
                        squares += (values[i] - mean) * (values[i] - mean) / 7;
                    }
                    for (int i = c; i < 14; i += 2) {
                        double expected = (values[i] - mean) / Math.sqrt(squares);
                        // two means of 3000 are rounded by 0.00012 each, of a deviation of 0.076
                        Assert.assertEquals(output[i], expected, 3.2e-3, "value " + i);
                    }
                }
            }
        }
    }

    /** More than 65,504 values of a channel, the largest number of float16, on each rank. */
    @Test(timeOut = 60_000)
    @SuppressWarnings("try") // a collector is used by being open
    public void manyValuesInFloat16() {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setDataType(DataType.FLOAT16);
            model.setBlock(norm(true, 1));
            TrainerKind kind = DATA_2;
            Shape shape = new Shape(4, 1, 200, 200);
            try (Trainer trainer = kind.open(model, config())) {
                trainer.initialize(shape);
                NDArray signs = manager.arange(160_000f).mod(2).mul(2).sub(1).reshape(shape);
                NDArray data = signs.mul(3).add(5).toType(DataType.FLOAT16, true);
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDArray output = trainer.forward(new NDList(data)).singletonOrThrow();
                    ArrayAssert.assertClose(
                            numbers(output), signs.toFloatArray(), 1e-3, "the normalized values");
                }
                TrainingRun.step(trainer, data, data.zerosLike());
            }
            Parameter gamma = model.getBlock().getParameters().get("gamma");
            ArrayAssert.assertClose(
                    numbers(gamma.getArray()), new float[] {0.9f}, 1e-2, "gamma after a step");
            Parameter variance = model.getBlock().getParameters().get("runningVar");
            float expected = 0.8f * (0.8f * 1 + 0.2f * 9) + 0.2f * 9; // of two passes
            ArrayAssert.assertClose(
                    numbers(variance.getArray()), new float[] {expected}, 5e-3, "runningVar");
        }
    }

    private static float[] numbers(NDArray array) {
        return array.toType(DataType.FLOAT32, true).toFloatArray();
    }

    @Test(timeOut = 60_000)
    public void slicesAreRefused() {
        Network net =
                Network.of(
                        sync -> sequence(column(sync, 6), norm(sync, 1), Blocks.row(sync, 6)),
                        HalfSquareLoss::new,
                        Network.regression(7, FEATURES, 6));
        for (TrainerKind kind : new TrainerKind[] {TENSOR_2, MESH_2X2}) {
            net.assertRefused(
                    kind,
                    "SyncBatchNorm of 6 channels gets a slice of the features",
                    "optGatherOutput(true)");
        }
    }

    @Test(timeOut = 60_000)
    public void oneValueOfAChannelIsRefused() {
        Network.of(
                        sync -> network(sync, norm(sync, 1)),
                        HalfSquareLoss::new,
                        Network.regression(1, FEATURES, 4))
                .assertRefused(DATA_2, false, "needs more than one value of each channel");
    }

    @Test(timeOut = 60_000)
    public void anAxisThatIsNotTheRowsIsRefused() {
        Network.of(
                        sync ->
                                sequence(
                                        linear(6),
                                        map(x -> x.reshape(1, -1, 6).swapAxes(0, 2)),
                                        norm(sync, 2),
                                        map(x -> x.swapAxes(0, 2).reshape(-1, 6)),
                                        end(sync)),
                        HalfSquareLoss::new,
                        Network.regression(15, FEATURES, 4))
                .assertRefused(DATA_2, false, "must be the rows of the");
    }

    private static DefaultTrainingConfig config() {
        return Configs.of(new HalfSquareLoss(), Configs.sgd(0.1f));
    }

    /** One all-gather forward, one reduce-scatter backward, and none in an evaluation. */
    @Test(timeOut = 60_000)
    public void collectives() {
        Engine.getInstance().setRandomSeed(4);
        try (Model model = Model.newInstance("net", Device.cpu());
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(sequence(linear(6), norm(true, 1), linear(4)));
            TrainerKind kind = DATA_3;
            try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, config())) {
                trainer.initialize(new Shape(7, FEATURES));
                NDArray data = TrainingRun.random(manager, 1, 7, FEATURES);
                NDArray labels = TrainingRun.random(manager, 2, 7, 4);
                TrainingRun.step(trainer, data, labels);
                CollectiveCounts before = trainer.getCollectiveCounts();
                TrainingRun.backward(trainer, data, labels);
                CollectiveCounts pass = trainer.getCollectiveCounts().minus(before);
                // the all-gather of the outputs is that of the loss, which is not a known mean
                Assert.assertEquals(pass.get(Collective.ALL_GATHER), 2, pass.toString());
                Assert.assertEquals(pass.get(Collective.REDUCE_SCATTER), 1, pass.toString());
                Assert.assertEquals(pass.total(), 3, pass.toString());
            }
        }
    }

    @Test
    @SuppressWarnings("try") // a scope is used by being open
    public void savesAndLoadsAsDjl() throws Exception {
        byte[][] saved = new byte[2][];
        for (int i = 0; i < 2; i++) {
            Block block = norm(i == 1, 1);
            block.initialize(manager, DataType.FLOAT32, new Shape(7, 6));
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                for (Parameter parameter : block.getParameters().values()) {
                    parameter.getArray().addi(manager.arange(6f));
                }
            }
            saved[i] = bytes(block);
        }
        Assert.assertEquals(saved[1], saved[0]);
        Block loaded = norm(true, 1);
        loaded.loadParameters(manager, new DataInputStream(new ByteArrayInputStream(saved[0])));
        Assert.assertEquals(bytes(loaded), saved[0]);
        ArrayAssert.assertBitEqual(
                loaded.getParameters().get("runningVar").getArray().toFloatArray(),
                new float[] {1, 2, 3, 4, 5, 6},
                "runningVar");
    }

    private static byte[] bytes(Block block) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        block.saveParameters(new DataOutputStream(bytes));
        return bytes.toByteArray();
    }
}
