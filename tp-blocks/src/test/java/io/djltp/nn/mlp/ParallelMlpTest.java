package io.djltp.nn.mlp;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;

import io.djltp.cut.Cut;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.BlockTraining;
import io.djltp.testing.Blocks;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.Ranks;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.List;

/** The MLP of a transformer is DJL's two linear layers, plain and gated, and communicates twice. */
public class ParallelMlpTest {

    private static final int ROWS = 5;
    private static final long FEATURES = 6;
    private static final long HIDDEN = 7;

    private static ParallelMlp.Builder mlp(boolean gated) {
        return Blocks.mlp(FEATURES, HIDDEN).optGated(gated);
    }

    /** DJL's layers, behind one that needs the gradient of the input. */
    private static Block plain(boolean gated, boolean bias) {
        GraphBlock block =
                new GraphBlock(
                        new Shape(FEATURES),
                        (call, input) -> {
                            NDArray y = call.call("up", input.head());
                            if (!gated) {
                                return new NDList(call.call("down", Activation.gelu(y)));
                            }
                            NDList halves = y.split(2, 1);
                            NDArray gate = halves.get(0);
                            y = Activation.sigmoid(gate).mul(gate).mul(halves.get(1));
                            return new NDList(call.call("down", y));
                        });
        long rows = gated ? 2 * HIDDEN : HIDDEN;
        block.add("up", linear(rows, bias), FEATURES);
        block.add("down", linear(FEATURES, bias), HIDDEN);
        return network(block);
    }

    private static Block network(Block mlp) {
        return sequence(linear(FEATURES), mlp);
    }

    private static TrainingRun train(TrainerKind kind, Block block) {
        return TrainingRun.of(
                kind,
                block,
                new HalfSquareLoss(),
                new Shape(ROWS, 4),
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        NDArray data = TrainingRun.random(manager, i, ROWS, 4);
                        NDArray labels = TrainingRun.random(manager, 9 + i, ROWS, FEATURES);
                        numbers.add(TrainingRun.step(trainer, data, labels));
                        for (float value :
                                trainer.evaluate(new NDList(data)).head().toFloatArray()) {
                            numbers.add(value);
                        }
                    }
                });
    }

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {{false, true}, {true, true}, {true, false}};
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void threeStepsAreThoseOfLinearLayers(boolean gated, boolean bias) {
        TrainingRun expected = train(PLAIN, plain(gated, bias));
        train(PLAIN, network(mlp(gated).optBias(bias).build())).assertSame(expected, 1e-7);
        for (int ranks = 1; ranks <= 4; ranks++) {
            train(
                            new TrainerKind(ParallelMode.TENSOR, ranks),
                            network(mlp(gated).optBias(bias).build()))
                    .assertSame(expected, 1e-5);
        }
        train(MESH_2X2, network(mlp(gated).optBias(bias).build())).assertSame(expected, 1e-5);
        Block mixed = network(mlp(gated).optBias(bias).optBatchSharded(true).build());
        train(MIXED_3, mixed).assertSame(expected, 1e-5);
        Cut chosen = Cut.ofLengths(1, 4, 2);
        Block uneven = network(mlp(gated).optBias(bias).optHiddenCut(chosen).build());
        train(TENSOR_3, uneven).assertSame(expected, 1e-5);
        Block whole =
                network(
                        mlp(gated)
                                .optBias(bias)
                                .optShardingStrategy(ShardingStrategy.replicate())
                                .build());
        train(TENSOR_2, whole).assertSame(expected, 1e-5);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void oneAllReduceForwardAndOneBackward(boolean gated, boolean bias) {
        for (int ranks = 1; ranks <= 4; ranks++) {
            String one = ranks == 1 ? "none" : "1 all-reduce";
            new BlockTraining(
                            () -> network(mlp(gated).optBias(bias).build()),
                            Network.batches(ROWS + "x4", ROWS + "x" + FEATURES),
                            null)
                    .assertCounts(new TrainerKind(ParallelMode.TENSOR, ranks), one, one);
        }
    }

    private static ParallelTrainer open(Model model, int ranks) {
        return new ParallelTrainer(
                model,
                new DefaultTrainingConfig(new HalfSquareLoss()),
                Ranks.config(ParallelMode.TENSOR, ranks));
    }

    /** What ranks have trained and saved, the unsharded block loads, without being told shapes. */
    @Test(timeOut = 60_000)
    public void savesAndLoadsTheWhole() throws Exception {
        Path folder = TestFolder.create();
        Engine.getInstance().setRandomSeed(2);
        try (Model cut = Blocks.model(network(mlp(true).build()));
                Model loaded = Model.newInstance("mlp");
                NDManager manager = NDManager.newBaseManager()) {
            try (Trainer trainer = open(cut, 3)) {
                trainer.initialize(new Shape(ROWS, 4));
                NDArray data = TrainingRun.random(manager, 1, ROWS, 4);
                TrainingRun.step(trainer, data, TrainingRun.random(manager, 2, ROWS, FEATURES));
                cut.save(folder, "mlp");
            }
            loaded.setBlock(network(mlp(true).build()));
            loaded.load(folder, "mlp");
            List<float[]> expected = TrainingRun.weights(cut.getBlock());
            List<float[]> actual = TrainingRun.weights(loaded.getBlock());
            Assert.assertEquals(actual.size(), 6);
            ArrayAssert.assertAllBitEqual(actual, expected, "parameter");
            Block up = cut.getBlock().getChildren().valueAt(1).getChildren().valueAt(0);
            Assert.assertEquals(
                    up.getDirectParameters().get("weight").getShape(),
                    new Shape(2 * HIDDEN, FEATURES));
        }
    }

    /** The block divides its slice; its activation may not mix what lies on other ranks. */
    @Test(timeOut = 60_000)
    public void anActivationThatIsNotElementwiseIsRefused() {
        for (boolean gated : new boolean[] {false, true}) {
            try (Model model =
                            Blocks.model(
                                    network(mlp(gated).optActivation(y -> y.softmax(-1)).build()));
                    NDManager manager = NDManager.newBaseManager();
                    Trainer trainer = open(model, 2)) {
                trainer.initialize(new Shape(ROWS, 4));
                NDList data = new NDList(TrainingRun.random(manager, 1, ROWS, 4));
                NDList labels = new NDList(TrainingRun.random(manager, 2, ROWS, FEATURES));
                Refusals.expect(
                        RuntimeException.class, () -> trainer.forward(data, labels), "softmax");
            }
        }
    }

    @Test
    public void whatCannotBeBuilt() {
        assertRefused(ParallelMlp.builder().setUnits(4), "setHiddenFeatures");
        assertRefused(
                mlp(true).optShardingStrategy(ShardingStrategy.rowwise()),
                "tensorParallel",
                "axiswise(0)");
        assertRefused(mlp(true).optHiddenCut(Cut.ofLengths(3, 3)), "7 hidden features");
    }

    private static void assertRefused(ParallelMlp.Builder builder, String... parts) {
        Refusals.throwsArgument(builder::build, parts);
    }

    /** More ranks than hidden features: refused before the first step. */
    @Test(timeOut = 60_000)
    public void moreRanksThanHiddenFeatures() {
        try (Model model = Blocks.model(network(Blocks.mlp(4, 2).optGated(true).build()));
                Trainer trainer = open(model, 3)) {
            Refusals.throwsArgument(
                    () -> trainer.initialize(new Shape(ROWS, 4)), "at most 2 ranks");
        }
    }
}
