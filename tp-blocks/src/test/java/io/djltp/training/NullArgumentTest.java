package io.djltp.training;

import io.djltp.head.LossOptions;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.plan.Plan;
import io.djltp.rank.ParallelConfig;
import io.djltp.sharding.ShardingStrategy;

import org.testng.Assert;
import org.testng.Assert.ThrowingRunnable;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

/** What must not be null is named where it is given. */
public class NullArgumentTest {

    @DataProvider
    public static Object[][] calls() {
        List<ThrowingRunnable> calls =
                List.of(
                        () -> new VocabParallelCrossEntropyLoss("loss", null),
                        () -> new VocabParallelCrossEntropyLoss(null, LossOptions.DEFAULT),
                        () -> LossOptions.DEFAULT.withReduction(null),
                        () -> LossOptions.DEFAULT.withClassWeights((float[]) null),
                        () -> ShardingStrategy.rowwise(null),
                        () -> ShardingStrategy.columnwise(null),
                        () -> ColumnParallelLinear.builder().optPrecision(null),
                        () -> ColumnParallelLinear.builder().optShardingStrategy(null),
                        () -> ClassificationHead.builder().optPrecision(null),
                        () -> ParallelMlp.builder().optPrecision(null),
                        () -> ParallelMlp.builder().optShardingStrategy(null),
                        () -> ParallelMultiHeadAttention.builder().optPrecision(null),
                        () -> VocabParallelEmbedding.builder().optShardingStrategy(null),
                        () -> Plan.builder().optPrecision(null),
                        () -> ParallelConfig.builder().optBackend(null),
                        () -> ParallelConfig.builder().optLossScaling(null));
        return calls.stream().map(each -> new Object[] {each}).toArray(Object[][]::new);
    }

    @Test(dataProvider = "calls")
    public void nullIsNamed(ThrowingRunnable call) {
        NullPointerException thrown = Assert.expectThrows(NullPointerException.class, call);
        Assert.assertTrue(thrown.getMessage().matches("[a-zA-Z]+"), thrown.getMessage());
    }
}
