package io.djltp.plan;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.internal.parameters.BlockWalk;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.Network.Batches;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * A model of DJL's blocks and the plan that makes it parallel.
 *
 * @param name what it is
 * @param block makes the model
 * @param plan the plan for a trainer
 * @param batches the batches
 * @param loss makes the loss; the argument says whether the model is parallel
 * @param optimizer makes the optimizer
 * @param tolerance the relative difference to DJL's own training that is rounding
 * @param kinds the trainers
 */
record PlanCase(
        String name,
        Supplier<Block> block,
        Function<TrainerKind, Plan> plan,
        Batches batches,
        Function<Boolean, Loss> loss,
        Supplier<Optimizer> optimizer,
        double tolerance,
        TrainerKind... kinds) {
    static final TrainerKind TENSOR_2 = new TrainerKind(ParallelMode.TENSOR, 2);
    static final TrainerKind TENSOR_3 = new TrainerKind(ParallelMode.TENSOR, 3);
    static final TrainerKind DATA_2 = new TrainerKind(ParallelMode.DATA, 2);
    static final TrainerKind MIXED_2 = new TrainerKind(ParallelMode.MIXED, 2);
    static final TrainerKind MIXED_3 = new TrainerKind(ParallelMode.MIXED, 3);
    static final TrainerKind MESH = TrainerKind.mesh(2, 2);
    private static final int STEPS = 3;

    /** Returns a case with class numbers for labels, trained by SGD. */
    static PlanCase of(
            String name, Supplier<Block> block, Plan plan, Batches batches, TrainerKind... kinds) {
        return new PlanCase(
                name,
                block,
                kind -> plan,
                batches,
                cut -> Loss.softmaxCrossEntropyLoss(),
                () -> Configs.sgd(0.01f),
                1e-5,
                kinds);
    }

    /** Returns the case with other trainers. */
    PlanCase on(TrainerKind... others) {
        return new PlanCase(name, block, plan, batches, loss, optimizer, tolerance, others);
    }

    /** Returns the case with other plans, by the trainer. */
    PlanCase by(Function<TrainerKind, Plan> plans) {
        return new PlanCase(name, block, plans, batches, loss, optimizer, tolerance, kinds);
    }

    /** Returns the case with another loss. */
    PlanCase with(Function<Boolean, Loss> other) {
        return new PlanCase(name, block, plan, batches, other, optimizer, tolerance, kinds);
    }

    /** Returns the case with another optimizer, such as Adam, which may differ more. */
    PlanCase with(Supplier<Optimizer> other, double by) {
        return new PlanCase(name, block, plan, batches, loss, other, by, kinds);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return name;
    }

    /** What steps of training have made of a network. Outputs that are left cut are null. */
    record Result(float[] losses, List<float[]> outputs, List<float[]> weights) {
        void assertSame(String kind, Result expected, double tolerance) {
            ArrayAssert.assertClose(losses, expected.losses, tolerance, kind + ": losses");
            Assert.assertEquals(outputs.size(), expected.outputs.size(), kind);
            for (int i = 0; i < outputs.size(); i++) {
                if (outputs.get(i) != null) { // else its loss tells
                    ArrayAssert.assertClose(
                            outputs.get(i), expected.outputs.get(i), tolerance, kind + " output");
                }
            }
            ArrayAssert.assertAllClose(weights, expected.weights, tolerance, kind + ": parameter ");
        }
    }

    private TrainingConfig config(boolean parallel) {
        return Configs.of(loss.apply(parallel), optimizer.get());
    }

    /** Trains from what a fixed seed gives; in parallel as the plan says. */
    Result train(TrainerKind kind) {
        Block net = block.get();
        if (kind.isParallel()) {
            Assert.assertSame(TensorParallel.parallelize(net, plan.apply(kind)), net);
        }
        float[] losses = new float[STEPS];
        List<float[]> outputs = new ArrayList<>();
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(net);
            try (Trainer trainer = kind.open(model, config(kind.isParallel()))) {
                trainer.initialize(batches.make(manager, 0)[0].getShapes());
                for (int i = 0; i < STEPS; i++) {
                    NDList[] batch = batches.make(manager, i);
                    losses[i] = TrainingRun.backward(trainer, batch[0], batch[1]);
                    trainer.step();
                }
                for (NDArray output : trainer.evaluate(batches.make(manager, STEPS)[0])) {
                    boolean cut = output.toString().contains("cut over the ranks");
                    outputs.add(cut ? null : ArrayAssert.floats(output));
                }
            }
            return new Result(losses, outputs, TrainingRun.weights(net));
        }
    }

    /** Asserts that it is trained as by DJL's trainer without the plan. */
    void assertTrainedAsByDjl() {
        Result plain = train(TrainerKind.PLAIN);
        for (TrainerKind kind : kinds) {
            train(kind).assertSame(name + " on " + kind, plain, tolerance);
        }
    }

    /** Values before the plan, a file after a step, and the way back. */
    void assertKeepsItsValuesThereAndBack() throws IOException, MalformedModelException {
        Path folder = TestFolder.create();
        try (NDManager manager = NDManager.newBaseManager();
                Model trained = Model.newInstance("net");
                Model loaded = Model.newInstance("net")) {
            NDList[] batch = batches.make(manager, 0);
            Engine.getInstance().setRandomSeed(42);
            Block model = block.get();
            trained.setBlock(model);
            try (Trainer trainer = trained.newTrainer(config(false))) {
                trainer.initialize(batch[0].getShapes());
            }
            List<float[]> before = TrainingRun.weights(model);
            List<String> names = model.getParameters().keys();
            Assert.assertSame(TensorParallel.parallelize(model, plan.apply(TENSOR_2)), model);
            Assert.assertEquals(model.getParameters().keys(), names);
            ArrayAssert.assertAllClose(TrainingRun.weights(model), before, 0, "parameter ");
            try (Trainer trainer = TENSOR_2.open(trained, config(true))) {
                trainer.initialize(batch[0].getShapes());
                TrainingRun.backward(trainer, batch[0], batch[1]);
                trainer.step();
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
