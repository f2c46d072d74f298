package io.djltp.testing;

import ai.djl.Device;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

/** Configurations of trainings on CPUs. */
public final class Configs {

    private Configs() {}

    /**
     * Returns a configuration with DJL's default optimizer.
     *
     * @param loss the loss
     * @return the configuration
     */
    public static DefaultTrainingConfig of(Loss loss) {
        return new DefaultTrainingConfig(loss).optDevices(new Device[] {Device.cpu()});
    }

    /**
     * Returns a configuration.
     *
     * @param loss the loss
     * @param optimizer the optimizer
     * @return the configuration
     */
    public static DefaultTrainingConfig of(Loss loss, Optimizer optimizer) {
        return of(loss).optOptimizer(optimizer);
    }

    /**
     * Returns stochastic gradient descent.
     *
     * @param rate the learning rate
     * @return the optimizer
     */
    public static Optimizer sgd(float rate) {
        return sgd(rate, 0);
    }

    /**
     * Returns stochastic gradient descent with momentum.
     *
     * @param rate the learning rate
     * @param momentum the momentum
     * @return the optimizer
     */
    public static Optimizer sgd(float rate, float momentum) {
        return Optimizer.sgd()
                .setLearningRateTracker(Tracker.fixed(rate))
                .optMomentum(momentum)
                .build();
    }

    /**
     * Returns Adam.
     *
     * @param rate the learning rate
     * @return the optimizer
     */
    public static Optimizer adam(float rate) {
        return Optimizer.adam().optLearningRateTracker(Tracker.fixed(rate)).build();
    }
}
