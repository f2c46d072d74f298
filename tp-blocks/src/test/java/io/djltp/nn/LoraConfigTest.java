package io.djltp.nn;

import static io.djltp.testing.Blocks.newColumn;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.training.loss.Loss;

import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;

/** Adapters of a network of the user's own train alike on any ranks, however its layers are cut. */
public class LoraConfigTest {

    private static final int STEPS = 4;

    private static SequentialBlock network(boolean tokens) {
        SequentialBlock network = new SequentialBlock();
        if (tokens) {
            network.add(new SequenceScatter());
        }
        network.add(newColumn(9).optSequenceParallel(tokens).optBatchShardedInput(!tokens).build())
                .add(Activation::relu)
                .add(RowParallelLinear.builder().setUnits(5).optSequenceParallel(tokens).build());
        if (tokens) {
            network.add(new SequenceGather());
        }
        return network.add(ColumnParallelLinear.builder().setUnits(6).optGatherOutput(true).build())
                .add(RowParallelLinear.builder().setUnits(3).optInputIsParallel(false).build());
    }

    @DataProvider
    public static Object[][] ranks() {
        return new Object[][] {
            {ParallelConfig.tensor(2), false},
            {ParallelConfig.tensor(3), false},
            {ParallelConfig.tensor(3), true},
            {ParallelConfig.mixed(2), false},
            {ParallelConfig.mesh(2, 2), false},
            {ParallelConfig.mesh(2, 2), true},
            {ParallelConfig.data(2), false},
        };
    }

    @Test(dataProvider = "ranks", timeOut = 60_000)
    public void lossesAreThoseOfOneRank(ParallelConfig config, boolean tokens) {
        float[] wanted = train(ParallelConfig.tensor(1), tokens);
        float[] found = train(config, tokens);
        for (int i = 0; i < STEPS; i++) {
            Assert.assertEquals(found[i], wanted[i], 1e-5 * wanted[i], "step " + i);
        }
        Assert.assertTrue(wanted[STEPS - 1] < wanted[0]);
    }

    private static float[] train(ParallelConfig parallel, boolean tokens) {
        Engine.getInstance().setRandomSeed(3);
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(Loss.l2Loss()).optOptimizer(Configs.sgd(0.1f));
        float[] losses = new float[STEPS];
        try (Model model = Model.newInstance("adapted");
                NDManager manager = NDManager.newBaseManager()) {
            Block network = network(tokens);
            // with values already, as one that was trained before
            network.initialize(model.getNDManager(), DataType.FLOAT32, new Shape(4, 6, 7));
            model.setBlock(network);
            LoraConfig.builder()
                    .optRank(2)
                    .optDropout(0.25f)
                    .optTargets(LoraConfig.ALL_LINEAR)
                    .build()
                    .addTo(network);
            NDArray x = manager.arange(4 * 6 * 7f).sin().reshape(4, 6, 7);
            NDArray y = manager.arange(4 * 6 * 3f).cos().reshape(4, 6, 3);
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, parallel)) {
                trainer.initialize(new Shape(4, 6, 7));
                for (int i = 0; i < STEPS; i++) {
                    losses[i] = TrainingRun.step(trainer, x, y);
                }
            }
        }
        return losses;
    }

    @Test(timeOut = 60_000)
    public void adaptersAreSavedByDjlToo() throws Exception {
        LoraConfig config = LoraConfig.builder().optTargets(LoraConfig.ALL_LINEAR).build();
        try (NDManager manager = NDManager.newBaseManager()) {
            Block saved = network(false);
            saved.initialize(manager, DataType.FLOAT32, new Shape(4, 7));
            Assert.assertEquals(config.addTo(saved).size(), 4);
            saved.getParameters().values().stream()
                    .filter(each -> each.getName().equals("B"))
                    .map(Parameter::getArray)
                    .forEach(
                            b -> {
                                b.setRequiresGradient(false); // to change it in place
                                b.addi(0.5f);
                            });
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            saved.saveParameters(new DataOutputStream(bytes));
            Block loaded = network(false);
            config.addTo(loaded);
            loaded.loadParameters(
                    manager, new DataInputStream(new ByteArrayInputStream(bytes.toByteArray())));
            NDList x = new NDList(manager.arange(28f).reshape(4, 7));
            ParameterStore store = new ParameterStore(manager, false);
            NDArray expected = saved.forward(store, x, false).singletonOrThrow();
            Assert.assertEquals(loaded.forward(store, x, false).singletonOrThrow(), expected);
            Refusals.throwsArgument(() -> config.addTo(saved), "has an adapter already");
        }
    }

    @Test
    public void wrongSettingsThrow() {
        LoraConfig.Builder builder = LoraConfig.builder();
        Refusals.throwsArgument(() -> builder.optRank(0), "1 or more, not 0");
        Refusals.throwsArgument(() -> builder.optAlpha(0), "above 0, not 0");
        Refusals.throwsArgument(() -> builder.optDropout(2), "from 0 to 1, not 2");
        Refusals.throwsArgument(() -> builder.optTargetPattern("("), "no regular expression: (");
        Refusals.throwsArgument(
                () -> builder.optTargets("query").build().addTo(network(false)),
                "of the name [query]",
                "RowParallelLinear");
    }
}
