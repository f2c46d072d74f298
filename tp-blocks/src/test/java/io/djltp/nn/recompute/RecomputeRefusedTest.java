package io.djltp.nn.recompute;

import static io.djltp.nn.recompute.RecomputeTest.run;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.Dropout;

import io.djltp.nn.ClassificationHead;
import io.djltp.nn.Recompute;
import io.djltp.nn.SequenceScatter;
import io.djltp.nn.SyncBatchNorm;
import io.djltp.nn.moe.MixtureOfExperts;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Network;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.concurrent.atomic.AtomicInteger;

/** What would not be the same the second time is refused before the first step. */
public class RecomputeRefusedTest {

    private static final TrainerKind DATA = DATA_2;

    @DataProvider
    public Object[][] networks() {
        return new Object[][] {
            {BatchNorm.builder().build(), TENSOR_1, "batch norm"},
            {BatchNorm.builder().build(), TENSOR_2, "batch norm"},
            {SyncBatchNorm.builder().build(), DATA, "batch norm"},
            {Dropout.builder().optRate(0.5f).build(), TENSOR_1, "ParallelDropout"},
            {Dropout.builder().optRate(0.5f).build(), DATA, "ParallelDropout"},
            {ClassificationHead.builder().setUnits(5).build(), TENSOR_2, "updates its own"},
            {
                MixtureOfExperts.builder().setExperts(2).setHiddenFeatures(4).build(),
                DATA,
                "MixtureOfExperts"
            },
            {
                LambdaBlock.singleton(x -> x.mul(x.getManager().randomNormal(x.getShape()))),
                DATA,
                "random"
            },
            {new LambdaBlock(x -> new NDList(x.head(), x.head())), TENSOR_1, "one output"},
            // what is wrong with a part is found as it is without recomputation
            {sequence(column(4), map(x -> x.softmax(-1))), TENSOR_2, "does not commute"},
            {sequence(new SequenceScatter(), map(x -> x.cumSum(0))), TENSOR_2, "SequenceGather"},
        };
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void isRefused(Block block, TrainerKind kind, String reason) {
        Block network = sequence(linear(6), new Recompute(block));
        RuntimeException e =
                Assert.expectThrows(
                        RuntimeException.class,
                        () -> run(kind, network, Network.regression(4, 6, 3)));
        Throwable cause = e instanceof RankFailedException ? e.getCause() : e;
        Assert.assertTrue(cause.getMessage().contains(reason), "" + cause);
    }

    /** A block whose calls differ, in values or in operations, is found in the backward pass. */
    @Test(timeOut = 60_000)
    public void aBlockThatChanges() {
        for (boolean values : new boolean[] {true, false}) {
            // of each rank: of both together, every second call can be the same rank's
            ThreadLocal<AtomicInteger> calls = ThreadLocal.withInitial(AtomicInteger::new);
            Block changing =
                    map(
                            x -> {
                                int call = calls.get().incrementAndGet();
                                return values ? x.mul(call) : call % 2 == 0 ? x.mul(1) : x;
                            });
            Block network = sequence(linear(6), new Recompute(sequence(changing, tanh())));
            Refusals.expect(
                    RuntimeException.class,
                    () -> run(DATA, network, Network.regression(4, 6, 6)),
                    "has not computed the same");
        }
    }

    /** With DJL's own trainer the block is what it wraps. */
    @Test(timeOut = 60_000)
    public void underDjlsTrainerNothingIsRefused() {
        Block network = sequence(linear(6), new Recompute(BatchNorm.builder().build()), linear(3));
        TrainingRun again = run(PLAIN, network, Network.regression(4, 6, 3));
        Block plain = sequence(linear(6), BatchNorm.builder().build(), linear(3));
        TrainingRun kept = run(PLAIN, plain, Network.regression(4, 6, 3));
        again.assertBitEqual(kept);
    }
}
