package io.djltp.spark.ml;

import java.util.Arrays;

/** What is wrong with the settings of a classifier, before any row is read. */
final class SettingsCheck {

    private SettingsCheck() {}

    /**
     * Checks settings.
     *
     * @throws IllegalArgumentException if one cannot be trained with
     */
    static void check(TrainingParams settings) {
        checkBatch(settings.getBatchSize(), settings.getRanks());
        checkMargin(settings);
        refuse(
                settings.getNumClasses() < 0,
                "numClasses is %d: set 1 or more, or 0 for one more than the largest label",
                settings.getNumClasses());
        int[] hidden = settings.getHiddenLayers();
        refuse(
                Arrays.stream(hidden).anyMatch(units -> units < 1),
                "hiddenLayers is %s: each layer needs 1 unit or more. setHiddenLayers() without"
                        + " numbers leaves them out",
                Arrays.toString(hidden));
        double smoothing = settings.getLabelSmoothing();
        refuse(
                !(smoothing >= 0 && smoothing < 1),
                "labelSmoothing is %s: it is the part of a label that all classes share, from 0 to"
                        + " below 1. Set one such as 0.1, or 0 for none",
                smoothing);
        refuse(
                settings.isSet(settings.checkpointInterval())
                        && settings.getCheckpointFolder().isEmpty(),
                "checkpointInterval is %d, and there is no folder for checkpoints, so that none"
                        + " would be taken: set one that all executors see (setCheckpointFolder),"
                        + " or leave the interval out",
                settings.getCheckpointInterval());
    }

    private static void checkBatch(int batch, int ranks) {
        refuse(
                batch < ranks || batch % ranks != 0,
                "The batch of %d rows is not shared out to %d ranks alike: set batchSize to a"
                        + " multiple, such as %d",
                batch,
                ranks,
                Math.max(1, batch / ranks) * ranks);
    }

    private static void checkMargin(TrainingParams settings) {
        double[] margin = settings.getHeadMargin();
        refuse(
                margin.length > 0 && settings.getHeadBias(),
                "headMargin %s needs a head without a bias, whose logits are cosines: call"
                        + " setHeadBias(false)",
                Arrays.toString(margin));
    }

    private static void refuse(boolean wrong, String message, Object... values) {
        if (wrong) {
            throw new IllegalArgumentException(message.formatted(values));
        }
    }
}
