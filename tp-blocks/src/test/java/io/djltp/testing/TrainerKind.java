package io.djltp.testing;

import ai.djl.Model;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;

import io.djltp.layout.ParallelMode;
import io.djltp.training.ParallelTrainer;

import java.util.ArrayList;
import java.util.List;

/**
 * DJL's own trainer, or a parallel one.
 *
 * @param mode how the ranks share the work, or {@code null} for DJL's trainer
 * @param ranks the number of ranks
 */
public record TrainerKind(ParallelMode mode, int ranks) {

    /** DJL's own trainer. */
    public static final TrainerKind PLAIN = new TrainerKind(null, 1);

    /**
     * Returns the parallel trainers of all modes and 1 to 4 ranks.
     *
     * @return one row of a data provider for each
     */
    public static Object[][] parallel() {
        return parallel(1, 2, 3, 4);
    }

    /**
     * Returns the parallel trainers of all modes.
     *
     * @param sizes the numbers of ranks
     * @return one row of a data provider for each
     */
    public static Object[][] parallel(int... sizes) {
        List<Object[]> kinds = new ArrayList<>();
        for (ParallelMode mode : ParallelMode.values()) {
            for (int ranks : sizes) {
                kinds.add(new Object[] {new TrainerKind(mode, ranks)});
            }
        }
        return kinds.toArray(new Object[0][]);
    }

    /**
     * Opens a trainer.
     *
     * @param model the model
     * @param config the training configuration
     * @return the trainer
     */
    public Trainer open(Model model, TrainingConfig config) {
        return mode == null
                ? model.newTrainer(config)
                : new ParallelTrainer(model, config, Ranks.config(mode, ranks));
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return mode == null ? "plain" : mode + " x " + ranks;
    }
}
