package io.djltp.internal.optimizer;

import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.steps;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BiConsumer;
import java.util.function.Supplier;

/** Trains a block on random numbers, by DJL's own trainer or on ranks. */
final class Training {

    static final int UNITS = 7;

    /** 8 rows are uneven over 3 ranks, 6 features over 4; the labels are far from the outputs. */
    static final Network.Batches BATCHES =
            (manager, step) -> {
                // gradients hardly depend on the weights
                NDArray targets = random(manager, 1000 + step, 8, UNITS).mul(64);
                return new NDList[] {new NDList(random(manager, step, 8, 6)), new NDList(targets)};
            };

    private Training() {}

    /** Trains from the weights that a fixed seed gives; something is called before each step. */
    static TrainingRun run(
            TrainerKind kind,
            Block block,
            Optimizer optimizer,
            int steps,
            BiConsumer<Trainer, Integer> before) {
        return TrainingRun.of(
                kind,
                block,
                Configs.of(new HalfSquareLoss(), optimizer),
                BATCHES.shapes(),
                (trainer, manager, losses) -> {
                    for (int step = 0; step < steps; step++) {
                        before.accept(trainer, step);
                        steps(trainer, losses, BATCHES, step, step + 1);
                    }
                });
    }

    static TrainingRun run(TrainerKind kind, Block block, Optimizer optimizer, int steps) {
        return run(kind, block, optimizer, steps, (trainer, step) -> {});
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
}
