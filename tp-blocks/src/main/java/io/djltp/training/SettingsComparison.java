package io.djltp.training;

import ai.djl.Model;
import ai.djl.training.TrainingConfig;

import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.rank.ParallelConfig;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Lets the processes of a job compare the settings of their trainers, before any of them starts its
 * ranks: with another mode they would form other groups, and with another learning rate train
 * nonsense.
 */
final class SettingsComparison {

    private SettingsComparison() {}

    /**
     * Refuses what cannot be trained, here or on another process. All processes call it.
     *
     * @return the model
     * @throws JobFailedException on all processes, if two of them differ, or another one refuses
     */
    static Model check(Model model, TrainingConfig config, ParallelConfig ranks) {
        Job job = ranks.getJob();
        if (job == null || job.getProcesses() == 1) {
            return ParallelTrainingConfig.check(model, config, ranks);
        }
        Comparison mine =
                Comparison.of(
                        () -> ParallelTrainingConfig.check(model, config, ranks),
                        () -> facts(config, ranks));
        JobFailedException difference =
                mine.difference(job, "the settings of the trainers", Comparison.SAME);
        mine.throwRefusal();
        if (difference != null) {
            throw difference;
        }
        return model;
    }

    private static Map<String, String> facts(TrainingConfig config, ParallelConfig ranks) {
        Map<String, String> facts = new LinkedHashMap<>();
        facts.put("the mode or mesh", ranks.describe());
        facts.put("optGradientClipNorm", "" + ranks.getGradientClipNorm());
        facts.put("optDriftCheck", ranks.describeDriftCheck());
        facts.put("optBatchCheck", "" + ranks.isBatchCheck());
        facts.put("optRandomCheck", "" + ranks.isRandomCheck());
        PlainSettings.add(facts, "optLossScaling", ranks.getLossScaling());
        PlainSettings.add(facts, "the optimizer", config.getOptimizer());
        PlainSettings.add(facts, "the loss", config.getLossFunction());
        return facts;
    }
}
