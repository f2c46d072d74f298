package io.djltp.examples;

import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.ParameterTracker;
import ai.djl.training.tracker.Tracker;

import io.djltp.optimizer.RowwiseAdagrad;

import java.util.Locale;

/** Optimizers that DJL supports on PyTorch, and row-wise Adagrad. */
public enum OptimizerName {
    /** Adagrad with one number of state for each row. */
    ADAGRAD(0),
    /** Stochastic gradient descent. */
    SGD(0),
    /** Stochastic gradient descent with a momentum of 0.9. */
    MOMENTUM(1),
    /** Adam. */
    ADAM(2),
    /** Adam with decoupled weight decay. */
    ADAMW(2);

    private final int stateArrays;

    OptimizerName(int stateArrays) {
        this.stateArrays = stateArrays;
    }

    /**
     * Returns how many arrays of the size of a parameter the optimizer keeps for it.
     *
     * @return the number of arrays
     */
    public int getStateArrays() {
        return stateArrays;
    }

    /**
     * Creates the optimizer.
     *
     * @param learningRate the learning rate, the same at every step
     * @return the optimizer
     */
    public Optimizer create(float learningRate) {
        return create(Tracker.fixed(learningRate));
    }

    /**
     * Creates the optimizer.
     *
     * @param rate the learning rate of each parameter
     * @return the optimizer
     */
    public Optimizer create(ParameterTracker rate) {
        return switch (this) {
            case ADAGRAD -> RowwiseAdagrad.builder().optLearningRateTracker(rate).build();
            case SGD -> Optimizer.sgd().setLearningRateTracker(rate).build();
            case MOMENTUM -> Optimizer.sgd().setLearningRateTracker(rate).optMomentum(0.9f).build();
            case ADAM -> Optimizer.adam().optLearningRateTracker(rate).build();
            case ADAMW -> Optimizer.adamW().optLearningRateTracker(rate).build();
        };
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
