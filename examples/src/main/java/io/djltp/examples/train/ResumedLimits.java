package io.djltp.examples.train;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.examples.BadInputException;

/** Compares what a checkpoint has trained for with the limits of the run that goes on from it. */
final class ResumedLimits {

    private ResumedLimits() {}

    /**
     * Returns how many epochs are left.
     *
     * @throws BadInputException if the checkpoint is beyond the limits: its model is not that of so
     *     few steps or epochs
     */
    static int remainingEpochs(TrainOptions options, CheckpointListener checkpoints) {
        if (checkpoints.getStep() > options.steps()) {
            throw new BadInputException(
                    ("--steps: the checkpoint in %s has trained for %d steps, which is beyond the"
                                    + " %d that are asked for: ask for as many or more, or choose"
                                    + " another --out")
                            .formatted(
                                    checkpoints.getFolder(),
                                    checkpoints.getStep(),
                                    options.steps()));
        }
        try {
            return checkpoints.remainingEpochs(options.epochs());
        } catch (IllegalArgumentException e) {
            throw new BadInputException("--epochs: " + e.getMessage(), e);
        }
    }
}
