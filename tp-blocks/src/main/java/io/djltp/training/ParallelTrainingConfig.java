package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.nn.Parameter;
import ai.djl.training.TrainingConfig;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Pair;
import ai.djl.util.PairList;

import io.djltp.optimizer.OptimizerSettings;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.SlicedInitializer;
import io.djltp.rank.ParallelConfig;

import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.function.Predicate;

/**
 * The user's training configuration as DJL's {@code Trainer} gets to see it: one device, so that
 * {@code EasyTrain} does not split the batch, and the loss that the ranks compute.
 */
final class ParallelTrainingConfig implements TrainingConfig {

    private final TrainingConfig config;
    private final Device device;
    private final RankLoss loss;

    ParallelTrainingConfig(TrainingConfig config, Device device) {
        this.config = config;
        this.device = device;
        loss = new RankLoss(config.getLossFunction());
    }

    /** Refuses what cannot be trained, before anything is begun, and sets the initializers. */
    static Model check(Model model, TrainingConfig config, ParallelConfig ranks) {
        if (model.getBlock() == null) {
            throw new IllegalStateException(
                    "You must set a block for the model before creating a new trainer");
        }
        if (config.getLossFunction() == null) {
            throw new IllegalArgumentException(
                    "The training configuration has no loss, and the ranks compute it: give"
                            + " DefaultTrainingConfig one, such as Loss.softmaxCrossEntropyLoss()");
        }
        ScaledLoss.check(model, OptimizerSettings.of(config.getOptimizer()), ranks);
        ParallelParameters.checkFree(model.getBlock());
        for (Pair<Initializer, Predicate<Parameter>> pair : config.getInitializers()) {
            if (pair.getKey() != null && pair.getValue() != null) {
                // what is to be read from files stays so: optInitializer(...) is for the rest
                Predicate<Parameter> made =
                        each -> !(each.getInitializer() instanceof SlicedInitializer);
                model.getBlock().setInitializer(pair.getKey(), made.and(pair.getValue()));
            }
        }
        return model;
    }

    /** {@inheritDoc} */
    @Override
    public Device[] getDevices() {
        return new Device[] {device};
    }

    /** {@inheritDoc} */
    @Override
    public PairList<Initializer, Predicate<Parameter>> getInitializers() {
        return config.getInitializers();
    }

    /** {@inheritDoc} */
    @Override
    public Optimizer getOptimizer() {
        return config.getOptimizer();
    }

    /** {@inheritDoc} */
    @Override
    public Loss getLossFunction() {
        return loss;
    }

    /** {@inheritDoc} */
    @Override
    public ExecutorService getExecutorService() {
        return config.getExecutorService();
    }

    /** {@inheritDoc} */
    @Override
    public List<Evaluator> getEvaluators() {
        return config.getEvaluators();
    }

    /** {@inheritDoc} */
    @Override
    public List<TrainingListener> getTrainingListeners() {
        return config.getTrainingListeners();
    }
}
