package io.djltp.cost;

import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.cost.ModelCost.ParameterCost;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.DeviceMesh;
import io.djltp.testing.CountedStep;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/**
 * What transformers, mixtures of experts and norms cost on a mesh, with their tokens whole and cut,
 * is what is then measured in a training, on every rank.
 */
public class TransformerCostTest {

    static Optimizer optimizer(boolean adam) {
        Tracker rate = Tracker.fixed(0.01f);
        return adam
                ? Optimizer.adam().optLearningRateTracker(rate).build()
                : Optimizer.sgd().setLearningRateTracker(rate).optMomentum(0.9f).build();
    }

    @DataProvider
    public Object[][] cases() {
        List<Object[]> cases = new ArrayList<>();
        for (CostNetwork network : CostNetwork.values()) {
            boolean transformer = network.ordinal() <= CostNetwork.UNEVEN.ordinal();
            for (String mesh :
                    transformer
                            ? List.of("1x2", "1x3", "2x2", "1x4", "2x1")
                            : List.of("1x3", "2x2", "2x1")) {
                boolean unknown = network == CostNetwork.TIED_HEAD && mesh.equals("2x2");
                if (!unknown) { // there the ids say how much is communicated
                    cases.add(new Object[] {network, DeviceMesh.parse(mesh), false});
                }
                if (network.canCutTokens()) {
                    cases.add(new Object[] {network, DeviceMesh.parse(mesh), true});
                }
            }
        }
        cases.add(new Object[] {CostNetwork.GPT, DeviceMesh.parse("1x1"), true});
        for (CostNetwork network : CostNetwork.values()) {
            boolean mixed =
                    network == CostNetwork.EXCHANGED
                            || network == CostNetwork.SYNC_NORM
                            || network == CostNetwork.TIED_HEAD;
            if (mixed) {
                cases.add(new Object[] {network, DeviceMesh.of(ParallelMode.MIXED, 3), false});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    static ModelCost cost(CostNetwork network, Block block, Loss loss, DeviceMesh mesh) {
        return ModelCost.builder()
                .setBlock(block)
                .setMesh(mesh)
                .setInputs(network.inputs())
                .setLoss(loss)
                .setOptimizer(optimizer(network.ordinal() % 2 == 0))
                .build();
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void costsAreThoseMeasured(Object which, DeviceMesh mesh, boolean cutTokens) {
        CostNetwork network = (CostNetwork) which;
        Block block = network.create(cutTokens);
        Loss loss = network.loss(block);
        ModelCost cost = cost(network, block, loss, mesh);
        Assert.assertFalse(block.isInitialized(), "nothing is allocated");
        CountedStep step =
                CountedStep.run(
                        block, loss, optimizer(network.ordinal() % 2 == 0), mesh, network::batch);
        for (int rank = 0; rank < mesh.getRanks(); rank++) {
            check(cost, step, rank, rank);
        }
    }

    /** Compares what was planned for a rank with what was counted of it. */
    static void check(ModelCost cost, CountedStep step, int rank, int local) {
        if (!cost.getTraffic(rank).equals(step.table(local))) {
            Assert.assertEquals(
                    sorted(cost.getTraffic(rank)), sorted(step.table(local)), "rank " + rank);
        }
        for (ParameterCost parameter : cost.getParameters()) {
            Assert.assertEquals(
                    parameter.getShape(cost.getTensorRank(rank)),
                    step.shape(local, parameter.parameter()),
                    parameter.name() + " on rank " + rank);
        }
        Assert.assertEquals(cost.getRank(rank), step.cost(local), "rank " + rank);
    }

    private static String sorted(Object table) {
        return String.join("\n", table.toString().lines().sorted().toList());
    }
}
