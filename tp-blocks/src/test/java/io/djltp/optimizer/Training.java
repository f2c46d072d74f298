package io.djltp.optimizer;

import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BiConsumer;
import java.util.function.Supplier;

/** Trains a block on random numbers, by DJL's own trainer or on ranks. */
final class Training {

    static final int ROWS = 8; // uneven over 3 ranks
    static final int FEATURES = 6; // uneven over 4 ranks
    static final int UNITS = 7;

    private Training() {}

    /**
     * Trains from the weights that a fixed seed gives.
     *
     * @param kind the trainer
     * @param block the network, from [ROWS, FEATURES] to [ROWS, UNITS]
     * @param optimizer the optimizer
     * @param steps the number of steps
     * @param before is called before each step
     * @return the weights
     */
    static List<float[]> run(
            TrainerKind kind,
            Block block,
            Optimizer optimizer,
            int steps,
            BiConsumer<Trainer, Integer> before) {
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net")) {
            model.setBlock(block);
            DefaultTrainingConfig config = Configs.of(new HalfSquareLoss(), optimizer);
            try (Trainer trainer = kind.open(model, config);
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(new Shape(ROWS, FEATURES));
                for (int step = 0; step < steps; step++) {
                    before.accept(trainer, step);
                    try (NDManager scope = manager.newSubManager()) {
                        backward(trainer, scope, step);
                    }
                    trainer.step();
                }
            }
            return weights(block);
        }
    }

    /**
     * Returns a network whose parameters DJL's trainer updates in the order of the tree. DJL goes
     * by the hash codes of their ids, which have the time in them: a parameter that is thawed late
     * has the number of this step or of the one before, as it comes after or before another.
     */
    static Block inOrder(Supplier<Block> factory) {
        while (true) {
            Block block = factory.get();
            List<String> ids = new ArrayList<>();
            block.getParameters().values().forEach(parameter -> ids.add(parameter.getId()));
            Map<String, String> store = new ConcurrentHashMap<>(); // as in DJL's ParameterStore
            ids.forEach(id -> store.put(id, id));
            if (ids.equals(new ArrayList<>(store.values()))) {
                return block;
            }
        }
    }

    static void backward(Trainer trainer, NDManager manager, int step) {
        NDList data = new NDList(random(manager, step, ROWS, FEATURES));
        // far from what the network gives: gradients hardly depend on the weights
        NDArray targets = random(manager, 1000 + step, ROWS, UNITS);
        NDList labels = new NDList(targets.mul(64));
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(data, labels);
            collector.backward(trainer.getLoss().evaluate(labels, output));
        }
    }

    static void assertSame(List<float[]> actual, List<float[]> expected, double tolerance) {
        assertEquals(actual.size(), expected.size());
        for (int i = 0; i < actual.size(); i++) {
            assertClose(actual.get(i), expected.get(i), tolerance, "parameter " + i);
        }
    }
}
