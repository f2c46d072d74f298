package io.djltp.checkpoint;

import static ai.djl.nn.Blocks.identityBlock;

import static io.djltp.testing.Blocks.frozen;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.checkpoint.StoppedRun.Source;
import io.djltp.checkpoint.StoppedRun.Task;
import io.djltp.head.Margin;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.ParallelDropout;
import io.djltp.nn.SyncBatchNorm;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.moe.MixtureOfExperts;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainingRun;

import java.util.function.Supplier;

/** Networks whose next step depends on more than weights, with an optimizer each. */
enum ResumedTasks {

    /** Drawn classes, and masks. */
    SAMPLED_HEAD(
            () ->
                    sequence(
                            linear(6),
                            tanh(),
                            ParallelDropout.builder().optRate(0.3f).build(),
                            headOf(23).optSampleShare(0.5f).build()),
            ResumedTasks::momentum,
            ResumedTasks::rows,
            labels(23)),

    /** Logits above what float32 has exponentials of, in chunks planned for the largest batch. */
    MARGIN_HEAD(
            () ->
                    sequence(
                            linear(6),
                            tanh(),
                            headOf(23)
                                    .optBias(false)
                                    .optFusedMemory(650)
                                    .optMargin(Margin.cosFace(80, 0.3f))
                                    .build()),
            ResumedTasks::scheduled,
            ResumedTasks::rows,
            labels(23)),

    /** Running means, those of each rank's rows too, behind a layer that is not trained. */
    BATCH_NORMS(
            () ->
                    sequence(
                            frozen(linear(6)),
                            SyncBatchNorm.builder().build(),
                            tanh(),
                            head(6),
                            row(true, 5),
                            tanh(),
                            BatchNorm.builder().build(),
                            ParallelDropout.builder().optRate(0.2f).build(),
                            head(7)),
            ResumedTasks::adam,
            ResumedTasks::rows,
            labels(7)),

    /** A table of which few rows are used. */
    BAGS(
            () -> sequence(new EmbeddingBag(11, 6), tanh(), head(7)),
            () -> RowwiseAdagrad.builder().optLearningRateTracker(Tracker.fixed(0.3f)).build(),
            ids(11),
            (manager, step) -> TrainingRun.labels(manager, 100 + step, 9, 7)),

    TIED(
            () -> {
                VocabParallelEmbedding embedding =
                        VocabParallelEmbedding.builder()
                                .setVocabularySize(13)
                                .setEmbeddingSize(6)
                                .build();
                return sequence(
                        embedding,
                        linear(6),
                        tanh(),
                        headOf(13).optBias(false).optTiedWeight(embedding).build());
            },
            () -> Optimizer.adagrad().optLearningRateTracker(Tracker.fixed(0.1f)).build(),
            ids(13),
            (manager, step) -> TrainingRun.labels(manager, 100 + step, 27, 13).reshape(9, 3)),

    EXPERTS(
            () ->
                    sequence(
                            linear(4),
                            tanh(),
                            sum(
                                    identityBlock(),
                                    MixtureOfExperts.builder()
                                            .setExperts(5)
                                            .setHiddenFeatures(6)
                                            .build()),
                            head(7)),
            ResumedTasks::adam,
            ResumedTasks::rows,
            labels(7));

    private final Supplier<Block> network;
    private final Supplier<Optimizer> optimizer;
    private final Source data;
    private final Source labels;

    ResumedTasks(
            Supplier<Block> network, Supplier<Optimizer> optimizer, Source data, Source labels) {
        this.network = network;
        this.optimizer = optimizer;
        this.data = data;
        this.labels = labels;
    }

    Task task() {
        return new Task(network, VocabParallelCrossEntropyLoss::new, optimizer, data, labels);
    }

    private static ClassificationHead.Builder headOf(long units) {
        return ClassificationHead.builder().setUnits(units).optBatchShardedInput(true);
    }

    private static Optimizer momentum() {
        return Configs.sgd(0.1f, 0.9f);
    }

    private static Optimizer adam() {
        return Configs.adam(0.02f);
    }

    /** A rate that falls, and keeps count of its own. */
    private static Optimizer scheduled() {
        Tracker rate =
                Tracker.multiFactor()
                        .setBaseValue(0.2f)
                        .setSteps(new int[] {1, 3, 5})
                        .optFactor(0.7f)
                        .build();
        return Optimizer.adamW().optLearningRateTracker(rate).build();
    }

    private static NDArray rows(NDManager manager, int step) {
        int rows = step == 2 ? 9 : 7; // chunks are planned for the largest batch so far
        return TrainingRun.random(manager, step, rows, 5).mul(step == 1 ? 40 : 1);
    }

    private static Source labels(int classes) {
        return (manager, step) ->
                TrainingRun.labels(manager, 100 + step, step == 2 ? 9 : 7, classes);
    }

    private static Source ids(int vocabulary) {
        return (manager, step) ->
                TrainingRun.labels(manager, step, 27, vocabulary)
                        .reshape(9, 3)
                        .toType(DataType.INT64, false);
    }
}
