package io.djltp.nn.moe;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;

import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;

/** What ranks begin with and save is, byte for byte, what the unsharded block does. */
public class MixtureSavedTest {

    @DataProvider
    public static Object[][] strategies() {
        return new Object[][] {
            {ShardingStrategy.expertParallel()}, {ShardingStrategy.tensorParallel()}
        };
    }

    @Test(dataProvider = "strategies", timeOut = 60_000)
    public void ranksSaveTheUnshardedBlock(ShardingStrategy strategy) throws Exception {
        byte[] plain = save(TrainerKind.PLAIN, strategy);
        byte[] ranks = save(new TrainerKind(ParallelMode.TENSOR, 3), strategy);
        Assert.assertEquals(ranks, plain);
        try (NDManager manager = NDManager.newBaseManager()) {
            Block block = block(strategy);
            block.loadParameters(manager, new DataInputStream(new ByteArrayInputStream(ranks)));
            NDArray x = TrainingRun.random(manager, 1, 6, 4);
            NDList y = block.forward(new ParameterStore(manager, false), new NDList(x), false);
            Assert.assertEquals(y.singletonOrThrow().getShape(), new Shape(6, 4));
        }
    }

    private static Block block(ShardingStrategy strategy) {
        return MixtureOfExperts.builder()
                .setExperts(5)
                .setHiddenFeatures(7)
                .optGated(true)
                .optRouterBias(true)
                .optStrategy(strategy)
                .build();
    }

    private static byte[] save(TrainerKind kind, ShardingStrategy strategy) throws Exception {
        Engine.getInstance().setRandomSeed(8);
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(block(strategy));
            DefaultTrainingConfig config = Configs.of(new HalfSquareLoss());
            try (Trainer trainer = kind.open(model, config)) {
                trainer.initialize(new Shape(6, 4));
                ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                model.getBlock().saveParameters(new DataOutputStream(bytes));
                return bytes.toByteArray();
            }
        }
    }
}
