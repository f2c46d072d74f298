package io.djltp.cost;

import ai.djl.Model;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.loss.Loss;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.collective.TrafficTable.Traffic;
import io.djltp.cost.ModelCost.RankCost;
import io.djltp.job.Job;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.moe.MixtureOfExperts;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.CountedStep;
import io.djltp.testing.ThreadedJob;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The counts of a layer of a transformer, those of several processes, and what is refused. */
public class TransformerCountsTest {

    private static final String LAYER = "02ParallelTransformer/02layer";

    private static ModelCost gpt(String mesh, boolean cutTokens) {
        Block block = CostNetwork.GPT.create(cutTokens);
        Loss loss = CostNetwork.GPT.loss(block);
        return TransformerCostTest.cost(CostNetwork.GPT, block, loss, DeviceMesh.parse(mesh));
    }

    /** Returns the operations of a layer, as "2 all-reduce". */
    private static String counts(TrafficTable table, String of, Direction direction) {
        Map<Collective, Long> counts = new TreeMap<>();
        for (TrafficTable.Place place : table.getPlaces()) {
            if (place.direction() == direction && place.issuer().startsWith(of)) {
                table.get(place.issuer(), direction)
                        .forEach((key, traffic) -> counts.merge(key, traffic.calls(), Long::sum));
            }
        }
        return counts.toString();
    }

    /** Megatron's counts, and with cut tokens those where the gathered input is kept. */
    @Test(timeOut = 60_000)
    public void aLayerHasTheCountsOfTheReference() {
        for (String mesh : List.of("1x2", "1x3", "2x2", "1x4")) {
            TrafficTable whole = gpt(mesh, false).getTraffic(0);
            Assert.assertEquals(counts(whole, LAYER, Direction.FORWARD), "{all-reduce=2}");
            Assert.assertEquals(counts(whole, LAYER, Direction.BACKWARD), "{all-reduce=2}");
            TrafficTable cut = gpt(mesh, true).getTraffic(0);
            Assert.assertEquals(
                    counts(cut, LAYER, Direction.FORWARD), "{all-gather=2, reduce-scatter=2}");
            Assert.assertEquals(
                    counts(cut, LAYER, Direction.BACKWARD), "{all-gather=2, reduce-scatter=2}");
            Traffic forward = whole.getTotal(Direction.FORWARD);
            Assert.assertTrue(forward.wire() > 0);
        }
        TrafficTable step = gpt("1x2", true).getTraffic(0);
        Assert.assertEquals(counts(step, "", Direction.STEP), "{all-reduce=1}"); // of all norms
        Assert.assertEquals(counts(gpt("1x2", false).getTraffic(0), "", Direction.STEP), "{}");
        Assert.assertEquals(gpt("1x1", true).getTraffic(0).getTotal(), Traffic.NONE);
    }

    /** A forward pass alone has the forward half, weights, and neither gradients nor state. */
    @Test(timeOut = 60_000)
    public void inferenceIsTheForwardPass() {
        CostNetwork network = CostNetwork.BERT;
        Block block = network.create(false);
        ModelCost trained =
                TransformerCostTest.cost(
                        network, block, network.loss(block), DeviceMesh.parse("1x3"));
        ModelCost cost =
                ModelCost.builder()
                        .setBlock(block)
                        .setMesh(DeviceMesh.parse("1x3"))
                        .setInputs(network.inputs())
                        .optTraining(false)
                        .build();
        for (int rank = 0; rank < 3; rank++) {
            RankCost bytes = trained.getRank(rank);
            Assert.assertEquals(cost.getRank(rank), new RankCost(bytes.weights(), 0, 0));
            Assert.assertEquals(
                    cost.getTraffic(rank).getTotal(),
                    trained.getTraffic(rank).getTotal(Direction.FORWARD));
        }
    }

    /** On a backend that is asynchronous, where products overlap with the sums of gradients. */
    @Test(timeOut = 120_000)
    public void processesOverTcp() throws Exception {
        for (boolean cutTokens : new boolean[] {false, true}) {
            ThreadedJob.run(job -> process(job, cutTokens));
        }
    }

    private static CountedStep process(Job job, boolean cutTokens) {
        CostNetwork network = CostNetwork.GPT;
        Block block = network.create(cutTokens);
        // both draw from one generator here: what they would draw differs
        block.setInitializer(new ConstantInitializer(0.01f), parameter -> true);
        Loss loss = network.loss(block);
        ModelCost cost;
        synchronized (Model.class) {
            cost = TransformerCostTest.cost(network, block, loss, DeviceMesh.parse("1x2"));
        }
        ParallelConfig ranks =
                ParallelConfig.builder()
                        .setMode(ParallelMode.TENSOR)
                        .setRanks(2)
                        .optJob(job)
                        .optDriftCheck(0)
                        .build();
        CountedStep step =
                CountedStep.run(
                        block, loss, TransformerCostTest.optimizer(true), ranks, network::batch);
        TransformerCostTest.check(cost, step, job.getProcess(), 0);
        return step;
    }

    @DataProvider
    public Object[][] refused() {
        Shape tokens = new Shape(5, 7, 12);
        return new Object[][] {
            {
                CostNetwork.TIED_HEAD.create(false),
                CostNetwork.TIED_HEAD.inputs(),
                "2x2",
                "how many a rank has follows from the ids"
            },
            {
                MixtureOfExperts.builder()
                        .setExperts(4)
                        .setHiddenFeatures(6)
                        .optExchangeTokens(true)
                        .build(),
                new Shape[] {tokens},
                "1x2",
                "follows from which 2 of them the tokens choose"
            },
            {
                new SequentialBlock()
                        .add(CostNetwork.GPT.create(true).getChildren().get(0).getValue()),
                CostNetwork.GPT.inputs(),
                "1x2",
                "The output of the network has a rank's tokens only"
            },
            {
                CostNetwork.GPT.create(true),
                new Shape[] {new Shape(5, 2)},
                "1x3",
                "gives each of the 3 tensor-parallel ranks a token or more"
            },
            {
                CostNetwork.UNEVEN.create(false),
                CostNetwork.UNEVEN.inputs(),
                "1x8",
                "cannot be cut over 8 ranks"
            },
            {
                new SequentialBlock()
                        .add(
                                ColumnParallelLinear.builder()
                                        .setUnits(4)
                                        .optSequenceParallel(true)
                                        .build()),
                new Shape[] {tokens},
                "1x2",
                "cannot be computed of slices of the features"
            },
        };
    }

    /** What cannot be known from shapes, or not be trained, is one error. */
    @Test(dataProvider = "refused", timeOut = 60_000)
    public void whatCannotBeKnownIsRefused(
            Block block, Shape[] inputs, String mesh, String message) {
        try {
            ModelCost.builder()
                    .setBlock(block)
                    .setMesh(DeviceMesh.parse(mesh))
                    .setInputs(inputs)
                    .setLoss(Loss.l2Loss())
                    .setOptimizer(TransformerCostTest.optimizer(true))
                    .build();
            Assert.fail("it was not refused");
        } catch (IllegalArgumentException e) {
            Assert.assertTrue(e.getMessage().contains(message), e.getMessage());
        }
        Assert.assertFalse(block.isInitialized());
    }
}
