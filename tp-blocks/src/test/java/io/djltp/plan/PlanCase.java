package io.djltp.plan;

import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.internal.parameters.BlockWalk;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.Network.Batches;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * A model of DJL's blocks and the plan that makes it parallel.
 *
 * @param name what it is
 * @param block makes the model
 * @param plan the plan for a trainer
 * @param network the model as it is, or as the plan makes it, with its loss, optimizer and data
 * @param tolerance the relative difference to DJL's own training that is rounding
 * @param kinds the trainers
 */
record PlanCase(
        String name,
        Supplier<Block> block,
        Function<TrainerKind, Plan> plan,
        Network network,
        double tolerance,
        TrainerKind... kinds) {

    /** Returns a case with class numbers for labels, trained by SGD on 2 and 3 ranks. */
    static PlanCase of(
            String name, Supplier<Block> block, Function<TrainerKind, Plan> plan, Batches batches) {
        Network network =
                new Network(
                        kind -> {
                            Block net = block.get();
                            if (kind.isParallel()) {
                                Assert.assertSame(
                                        TensorParallel.parallelize(net, plan.apply(kind)), net);
                            }
                            return net;
                        },
                        cut -> Loss.softmaxCrossEntropyLoss(),
                        () -> Configs.sgd(0.01f),
                        batches);
        return new PlanCase(name, block, plan, network, 1e-5, TENSOR_2, TENSOR_3);
    }

    /** Returns the case with other trainers. */
    PlanCase on(TrainerKind... others) {
        return new PlanCase(name, block, plan, network, tolerance, others);
    }

    /** Returns the case with another loss. */
    PlanCase with(Function<Boolean, Loss> other) {
        return new PlanCase(name, block, plan, network.with(other), tolerance, kinds);
    }

    /** Returns the case with another optimizer, such as Adam, which may differ more. */
    PlanCase with(Supplier<Optimizer> other, double by) {
        return new PlanCase(name, block, plan, network.by(other), by, kinds);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return name;
    }

    /** Asserts that it is trained as by DJL's trainer without the plan. */
    void assertTrainedAsByDjl() {
        network.assertEqual(tolerance, kinds);
    }

    /** Values before the plan, a file after a step, and the way back. */
    void assertKeepsItsValuesThereAndBack() throws IOException, MalformedModelException {
        Path folder = TestFolder.create();
        try (NDManager manager = NDManager.newBaseManager();
                Model trained = Model.newInstance("net");
                Model loaded = Model.newInstance("net")) {
            NDList[] batch = network.batches().make(manager, 0);
            Engine.getInstance().setRandomSeed(42);
            Block model = block.get();
            trained.setBlock(model);
            try (Trainer trainer = trained.newTrainer(network.config(false))) {
                trainer.initialize(batch[0].getShapes());
            }
            List<float[]> before = TrainingRun.weights(model);
            List<String> names = model.getParameters().keys();
            Assert.assertSame(TensorParallel.parallelize(model, plan.apply(TENSOR_2)), model);
            Assert.assertEquals(model.getParameters().keys(), names);
            ArrayAssert.assertAllClose(TrainingRun.weights(model), before, 0, "parameter ");
            try (Trainer trainer = TENSOR_2.open(trained, network.config(true))) {
                trainer.initialize(batch[0].getShapes());
                TrainingRun.step(trainer, batch[0], batch[1]);
                trained.save(folder, "net");
            }
            List<float[]> after = TrainingRun.weights(model);
            loaded.setBlock(block.get());
            loaded.load(folder, "net");
            ArrayAssert.assertAllClose(
                    TrainingRun.weights(loaded.getBlock()), after, 0, "parameter ");
            NDArray output = predict(manager, model, batch[0]);
            ArrayAssert.assertClose(
                    predict(manager, loaded.getBlock(), batch[0]), output, 1e-6, "loaded");
            Assert.assertSame(TensorParallel.serialize(model), model);
            assertPlain(model);
            ArrayAssert.assertAllClose(TrainingRun.weights(model), after, 0, "parameter ");
            Assert.assertEquals(model.getParameters().keys(), names);
            ArrayAssert.assertClose(predict(manager, model, batch[0]), output, 1e-6, "plain");
            byte[] file = Files.readAllBytes(folder.resolve("net-0000.params"));
            trained.save(folder, "net");
            Assert.assertEquals(Files.readAllBytes(folder.resolve("net-0000.params")), file);
        }
    }

    private static void assertPlain(Block block) {
        BlockWalk.of(
                block,
                (each, path, certain) -> {
                    String type = each.getClass().getName();
                    Assert.assertTrue(
                            type.startsWith("ai.djl.")
                                    || type.startsWith(PlannedNetworks.class.getName()),
                            path + " is a " + type);
                });
    }

    private static NDArray predict(NDManager manager, Block block, NDList data) {
        ParameterStore store = new ParameterStore(manager, false);
        NDList input = new NDList();
        data.forEach(array -> input.add(array.duplicate()));
        return block.forward(store, input, false).head();
    }
}
