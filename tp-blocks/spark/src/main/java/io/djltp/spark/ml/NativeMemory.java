package io.djltp.spark.ml;

import ai.djl.ndarray.types.DataType;

import io.djltp.cost.ModelCost;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelMode;
import io.djltp.spark.SparkRanks;

import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;

/**
 * Whether an executor can hold the weights of its ranks. They are outside of the Java heap, where
 * YARN and Kubernetes leave an executor what {@code spark.executor.memoryOverhead} says, and kill
 * it without a word if it takes more.
 */
final class NativeMemory {

    private static final String OVERHEAD = "spark.executor.memoryOverhead";
    private static final double FACTOR = 0.1; // Spark's defaults
    private static final long LEAST = 384;
    private static final long MIB = 1 << 20;

    private NativeMemory() {}

    /**
     * Checks the executor of this task.
     *
     * @throws IllegalStateException if the weights do not fit
     */
    static void check(TrainingPlan plan, SparkRanks ranks) {
        long needed = needed(plan, ranks);
        long allowed = allowed(SparkEnv.get().conf());
        if (allowed > 0 && needed > allowed) {
            throw new IllegalStateException(
                    ("The executor has %d MiB of native memory (%s), and its weights and what the"
                                    + " optimizer keeps of them need %d MiB: set %s to %dm or"
                                    + " more, or share the classes out to more ranks")
                            .formatted(
                                    allowed / MIB,
                                    OVERHEAD,
                                    mebibytes(needed),
                                    OVERHEAD,
                                    mebibytes(needed * 3 / 2)));
        }
    }

    private static long mebibytes(long bytes) {
        return (bytes + MIB - 1) / MIB;
    }

    /** Weights, gradients and state of the task's ranks, and at the end the weights, whole. */
    private static long needed(TrainingPlan plan, SparkRanks ranks) {
        ModelCost.Builder builder =
                ModelCost.builder()
                        .setBlock(plan.network().newNetwork())
                        .setMesh(DeviceMesh.of(ParallelMode.MIXED, ranks.getRanks()))
                        .setInputs(plan.network().inputShapes(plan.settings().getBatchSize()))
                        .setLoss(new VocabParallelCrossEntropyLoss())
                        .setOptimizer(plan.settings().newOptimizer());
        if (plan.network().ids() || plan.network().isSparse()) {
            builder.optIdType(DataType.INT32);
        }
        ModelCost cost = builder.build();
        long bytes = 0;
        for (int i = 0; i < ranks.getLocalRanks(); i++) {
            bytes += cost.getRank(ranks.getFirstRank() + i).getTotal();
        }
        long whole = 0;
        for (int rank = 0; rank < ranks.getRanks(); rank++) {
            whole += cost.getRank(rank).weights();
        }
        return bytes + whole;
    }

    /**
     * Returns what the executor's container may take outside of the heap; 0 if nobody limits it.
     */
    private static long allowed(SparkConf conf) {
        if (conf.contains(OVERHEAD)) {
            return conf.getSizeAsMb(OVERHEAD) * MIB;
        }
        String master = conf.get("spark.master", "");
        if (!master.startsWith("yarn") && !master.startsWith("k8s")) {
            return 0;
        }
        double factor = conf.getDouble("spark.executor.memoryOverheadFactor", FACTOR);
        long heap = conf.getSizeAsMb("spark.executor.memory", "1g");
        return Math.max(LEAST, (long) (heap * factor)) * MIB;
    }
}
