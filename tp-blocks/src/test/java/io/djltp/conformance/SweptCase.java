package io.djltp.conformance;

import ai.djl.ndarray.types.DataType;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

import java.util.SplittableRandom;

/** A network, and how it is trained. */
record SweptCase(
        long seed, SweptTree tree, TrainerKind kind, int rows, int optimizer, DataType type) {

    private static final float RATE = 0.005f;

    private static final int MOST_RANKS = 8;

    /** Draws the case of a seed. */
    static SweptCase of(long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        boolean mixed = random.nextInt(5) == 0;
        int most = random.nextInt(4) == 0 ? MOST_RANKS : MOST_RANKS / 2; // few are quick
        int tensor = Math.min(random.nextInt(most) + 1, random.nextInt(most) + 1);
        int data = mixed ? tensor : random.nextInt(most / tensor) + 1;
        int tokens = random.nextInt(5) < 2 ? 0 : random.nextInt(2, Math.max(4, tensor + 2));
        Draws draws = new Draws(random, tensor, tokens);
        TrainerKind kind =
                mixed
                        ? new TrainerKind(ParallelMode.MIXED, tensor)
                        : TrainerKind.mesh(data, tensor);
        return new SweptCase(
                seed,
                SweptTree.draw(draws, mixed),
                seed % 2 == 0 ? kind : kind.sharded(),
                draws.between(Math.max(1, data - 1), data + 3),
                draws.between(0, 2),
                draws.between(0, 4) == 0 ? DataType.FLOAT64 : DataType.FLOAT32);
    }

    /** Returns the same training of another network. */
    SweptCase with(SweptTree other) {
        return new SweptCase(seed, other, kind, rows, optimizer, type);
    }

    private boolean isAdam() {
        return optimizer == 2;
    }

    /** SGD, with momentum, or Adam. */
    Optimizer createOptimizer() {
        Tracker rate = Tracker.fixed(RATE);
        return isAdam()
                ? Optimizer.adam().optLearningRateTracker(rate).build()
                : Optimizer.sgd()
                        .setLearningRateTracker(rate)
                        .optMomentum(optimizer == 1 ? 0.9f : 0)
                        .build();
    }

    /**
     * SGD whose one step is 16 times the gradient of the sum of the rows' losses: what the
     * parameters are after it is the gradient, and of what they were before a small part.
     */
    Optimizer createGradientStep() {
        long elements = rows * Math.max(1L, tree.tokens());
        elements *= tree.end().classes() ? 1 : tree.end().outputs();
        return Configs.sgd(16f * elements);
    }

    /** What two computations in the type of the case may differ by, relative to the largest. */
    double tolerance(boolean gradients) {
        boolean adam = isAdam() && !gradients; // DJL's computes its factors in float32
        return adam ? 1e-4 : precision() == DataType.FLOAT64 ? 1e-9 : 1e-5;
    }

    /** Returns what is computed in: a router and a loss of classes take float32 in any case. */
    DataType precision() {
        return tree.isRouted() || tree.end().classes() ? DataType.FLOAT32 : type;
    }

    /** Returns what is left of numbers about 1 that cancel; Adam makes a whole step of anything. */
    double remainder(boolean gradients) {
        return isAdam() && !gradients
                ? SweptTraining.STEPS * RATE
                : precision() == DataType.FLOAT64 ? 0x1p-53 : 0x1p-24;
    }
}
