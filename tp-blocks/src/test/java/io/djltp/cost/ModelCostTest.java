package io.djltp.cost;

import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.GraphBlock.graph;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.transformer.ScaledDotProductAttentionBlock;
import ai.djl.nn.transformer.TransformerEncoderBlock;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.collective.TrafficTable.Traffic;
import io.djltp.cost.ModelCost.ParameterCost;
import io.djltp.cost.ModelCost.RankCost;
import io.djltp.job.Job;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.moe.MixtureOfExperts;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.plan.Plan;
import io.djltp.plan.TensorParallel;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.CountedStep;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.Ranks;
import io.djltp.testing.Refusals;
import io.djltp.testing.ThreadedJob;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * What a model costs on a mesh, with its tokens whole and cut, is what is then measured in a
 * training, on every rank.
 */
public class ModelCostTest {

    private static final String LAYER = "02ParallelTransformer/02layer";

    private static Optimizer optimizer(int number) {
        Tracker rate = Tracker.fixed(0.01f);
        switch (number % 3) {
            case 0:
                return Optimizer.adam().optLearningRateTracker(rate).build();
            case 1:
                return Optimizer.sgd()
                        .setLearningRateTracker(rate)
                        .optMomentum(number % 2 * 0.9f)
                        .build();
            default:
                return RowwiseAdagrad.builder().optLearningRateTracker(rate).build();
        }
    }

    @DataProvider
    public Object[][] cases() {
        List<DeviceMesh> meshes = new ArrayList<>();
        for (String mesh : List.of("1x1", "1x2", "1x3", "2x1", "3x1", "2x2", "1x4")) {
            meshes.add(DeviceMesh.parse(mesh));
        }
        meshes.add(DeviceMesh.of(ParallelMode.MIXED, 2));
        meshes.add(DeviceMesh.of(ParallelMode.MIXED, 3));
        List<Object[]> cases = new ArrayList<>();
        for (CostNetwork network : CostNetwork.values()) {
            for (DeviceMesh mesh : meshes) {
                for (boolean cutTokens : new boolean[] {false, true}) {
                    if (network.isKnown(mesh, cutTokens)) {
                        cases.add(new Object[] {network, mesh, cutTokens, cases.size()});
                    }
                }
            }
        }
        return cases.toArray(new Object[0][]);
    }

    private static ModelCost cost(Block block, Loss loss, Shape[] inputs, String mesh) {
        return ModelCost.builder()
                .setBlock(block)
                .setMesh(DeviceMesh.parse(mesh))
                .setInputs(inputs)
                .setLoss(loss)
                .setOptimizer(optimizer(0))
                .build();
    }

    private static ModelCost cost(CostNetwork network, Block block, String mesh) {
        return cost(block, network.loss(block), network.inputs(), mesh);
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void costsAreThoseMeasured(Object which, DeviceMesh mesh, boolean cutTokens, int each) {
        CostNetwork network = (CostNetwork) which;
        Block block = network.create(cutTokens);
        Loss loss = network.loss(block);
        boolean sharded = each % 4 > 1;
        ModelCost cost =
                ModelCost.builder()
                        .optShardOptimizer(sharded)
                        .setBlock(block)
                        .setMesh(mesh)
                        .setInputs(network.inputs())
                        .setLoss(loss)
                        .setOptimizer(optimizer(each))
                        .build();
        Assert.assertFalse(block.isInitialized(), "nothing is allocated");
        CountedStep step =
                CountedStep.run(block, loss, optimizer(each), mesh, sharded, network::batch);
        for (int rank = 0; rank < mesh.getRanks(); rank++) {
            check(cost, step, rank, rank);
        }
    }

    /** Compares what was planned for a rank with what was counted of it. */
    private static void check(ModelCost cost, CountedStep step, int rank, int local) {
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

    /** A network that is trained already keeps its weights. */
    @Test(timeOut = 60_000)
    public void valuesAndShapesOfANetworkStay() {
        Block block = CostNetwork.MLP.create(false);
        try (NDManager manager = NDManager.newBaseManager()) {
            block.initialize(manager, DataType.FLOAT32, new Shape(3, 4));
            NDArray weight = block.getParameters().get(0).getValue().getArray();
            float[] values = weight.toFloatArray();
            ModelCost cost = cost(CostNetwork.MLP, block, "1x2");
            Assert.assertEquals(cost.getTraffic(0).getTotal().calls(), 2);
            Assert.assertSame(block.getParameters().get(0).getValue().getArray(), weight);
            Assert.assertEquals(weight.toFloatArray(), values);
            Assert.assertEquals(block.getInputShapes(), new Shape[] {new Shape(3, 4)});
        }
    }

    private static TrafficTable gpt(String mesh, boolean cutTokens) {
        return cost(CostNetwork.GPT, CostNetwork.GPT.create(cutTokens), mesh).getTraffic(0);
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
            TrafficTable whole = gpt(mesh, false);
            Assert.assertEquals(counts(whole, LAYER, Direction.FORWARD), "{all-reduce=2}");
            Assert.assertEquals(counts(whole, LAYER, Direction.BACKWARD), "{all-reduce=2}");
            TrafficTable cut = gpt(mesh, true);
            Assert.assertEquals(
                    counts(cut, LAYER, Direction.FORWARD), "{all-gather=2, reduce-scatter=2}");
            Assert.assertEquals(
                    counts(cut, LAYER, Direction.BACKWARD), "{all-gather=2, reduce-scatter=2}");
            Traffic forward = whole.getTotal(Direction.FORWARD);
            Assert.assertTrue(forward.wire() > 0);
        }
        TrafficTable step = gpt("1x2", true);
        Assert.assertEquals(counts(step, "", Direction.STEP), "{all-reduce=1}"); // of all norms
        Assert.assertEquals(counts(gpt("1x2", false), "", Direction.STEP), "{}");
        Assert.assertEquals(gpt("1x1", true).getTotal(), Traffic.NONE);
    }

    /** A forward pass alone has the forward half, weights, and neither gradients nor state. */
    @Test(timeOut = 60_000)
    public void inferenceIsTheForwardPass() {
        CostNetwork network = CostNetwork.BERT;
        Block block = network.create(false);
        ModelCost trained = cost(network, block, "1x3");
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
            cost = cost(block, loss, network.inputs(), "1x2");
        }
        ParallelConfig ranks =
                Ranks.builder(ParallelMode.TENSOR, 2).optJob(job).optDriftCheck(0).build();
        CountedStep step = CountedStep.run(block, loss, optimizer(0), ranks, network::batch);
        check(cost, step, job.getProcess(), 0);
        return step;
    }

    /**
     * A block of the user's own with two inputs, and one of DJL's that is initialized for -1 rows.
     */
    @Test(timeOut = 60_000)
    public void aBlockOfTwoInputs() {
        Block attention =
                ScaledDotProductAttentionBlock.builder()
                        .setEmbeddingSize(12)
                        .setHeadCount(2)
                        .build();
        Block own =
                new GraphBlock(new Shape(7, 12), (call, in) -> call.list("attention", in.head()))
                        .add("attention", attention, 7, 12);
        Shape[] two = {new Shape(5, 7, 12), new Shape(5, 7, 12)};
        ModelCost cost = cost(own, Loss.l2Loss(), two, "1x2");
        Assert.assertEquals(cost.getTraffic(0).getTotal(), Traffic.NONE);
        Assert.assertEquals(cost.getLayers().size(), 4);
    }

    /** The block is named as the user knows it. */
    @Test(timeOut = 60_000)
    public void aBlockOfAPlan() {
        Block encoder = new TransformerEncoderBlock(12, 2, 8, 0, Activation::relu);
        Block planned = TensorParallel.parallelize(sequence(encoder), Plan.auto());
        Shape[] vectors = {new Shape(5, 7, 12)};
        Refusals.throwsArgument(
                () -> cost(planned, Loss.l2Loss(), vectors, "1x2"),
                "the block 01TransformerEncoderBlock",
                "trainer.getCollectiveCounts()");
    }

    @DataProvider
    public Object[][] refused() {
        Shape[] features = {new Shape(5, 4)};
        Shape[] vectors = {new Shape(5, 7, 12)};
        Block mixture =
                MixtureOfExperts.builder()
                        .setExperts(4)
                        .setHiddenFeatures(6)
                        .optExchangeTokens(true)
                        .build();
        Block cutTokens =
                ColumnParallelLinear.builder().setUnits(4).optSequenceParallel(true).build();
        CostNetwork gpt = CostNetwork.GPT;
        CostNetwork uneven = CostNetwork.UNEVEN;
        CostNetwork tied = CostNetwork.TIED_HEAD;
        String slices = "L2Loss cannot be computed of slices of the features";
        String ids = "how many a rank has follows from the ids";
        String choices = "follows from which 2 of them the tokens choose";
        String output = "The output of the network has a rank's tokens only";
        String few = "gives each of the 3 tensor-parallel ranks a token or more";
        String slice = "needs an input that is whole, and gets a slice";
        String whole = "needs a slice of the features, and gets an input that is whole";
        Block sideBySide =
                graph(8, (call, x) -> call.call("a", x).add(call.call("b", x)))
                        .add("a", head(8), 4)
                        .add("b", head(8), 4);
        String order = " .. that 01GraphBlock (GraphBlock) calls its children once each, in order";
        Block embedding = gpt.create(true).getChildren().get(0).getValue();
        return new Object[][] {
            {sequence(head(8), head(8)), features, "1x2", slice},
            {sequence(sideBySide), features, "1x2", slice + order},
            {sequence(row(5)), features, "1x2", whole},
            {sequence(head(8)), features, "1x2", slices},
            {sequence(gathered(1)), features, "1x2", "cannot be cut over 2 ranks"},
            {tied.create(false), tied.inputs(), "2x2", ids},
            {mixture, vectors, "1x2", choices},
            {sequence(embedding), gpt.inputs(), "1x2", output},
            {gpt.create(true), new Shape[] {new Shape(5, 2)}, "1x3", few},
            {uneven.create(false), uneven.inputs(), "1x8", "cannot be cut over 8 ranks"},
            {sequence(cutTokens), vectors, "1x2", "cannot be computed of slices of the features"},
        };
    }

    /** What cannot be known, or a trainer would refuse; the network is left as it was. */
    @Test(dataProvider = "refused", timeOut = 60_000)
    public void whatCannotBeKnownIsRefused(
            Block block, Shape[] inputs, String mesh, String message) {
        Refusals.throwsArgument(() -> cost(block, Loss.l2Loss(), inputs, mesh), message);
        Assert.assertFalse(block.isInitialized());
    }
}
