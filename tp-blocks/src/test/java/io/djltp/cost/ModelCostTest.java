package io.djltp.cost;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;
import ai.djl.nn.ParallelBlock;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.convolutional.Conv2d;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.Recompute;
import io.djltp.nn.RowParallelLinear;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.DeviceMesh;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.CountedStep;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;

/** What a model costs on a mesh is what is then measured in a training, on every rank. */
public class ModelCostTest {

    private static final int BATCH = 7; // uneven on 2 and 3 ranks

    /** A network with its batch and its loss. */
    private enum Case {
        COLUMN(
                () ->
                        new SequentialBlock()
                                .add(Linear.builder().setUnits(6).build())
                                .add(column(8).optGatherOutput(true).build())
                                .add(Linear.builder().setUnits(5).build())),
        FIRST_COLUMN(() -> new SequentialBlock().add(column(5).optGatherOutput(true).build())),
        ROW(
                () ->
                        new SequentialBlock()
                                .add(Linear.builder().setUnits(8).build())
                                .add(
                                        RowParallelLinear.builder()
                                                .setUnits(5)
                                                .optInputIsParallel(false)
                                                .optBatchShardedInput(true)
                                                .build())),
        MLP(
                () ->
                        new SequentialBlock()
                                .add(Linear.builder().setUnits(6).build())
                                .add(column(11).build())
                                .add(Activation::relu)
                                .add(
                                        RowParallelLinear.builder()
                                                .setUnits(5)
                                                .optBatchShardedOutput(true)
                                                .build())),
        RECOMPUTED(
                () ->
                        new SequentialBlock()
                                .add(Linear.builder().setUnits(6).build())
                                .add(
                                        new Recompute(
                                                new SequentialBlock()
                                                        .add(column(11).build())
                                                        .add(Activation::relu)
                                                        .add(
                                                                RowParallelLinear.builder()
                                                                        .setUnits(5)
                                                                        .optBatchShardedOutput(true)
                                                                        .build())))),
        RESIDUAL(
                () ->
                        new SequentialBlock()
                                .add(Linear.builder().setUnits(5).optBias(false).build())
                                .add(
                                        new ParallelBlock(
                                                list ->
                                                        new NDList(
                                                                list.get(0)
                                                                        .head()
                                                                        .add(list.get(1).head())),
                                                List.of(
                                                        new SequentialBlock()
                                                                .add(column(7).build())
                                                                .add(
                                                                        RowParallelLinear.builder()
                                                                                .setUnits(5)
                                                                                .optBatchShardedOutput(
                                                                                        true)
                                                                                .build()),
                                                        Blocks.identityBlock())))),
        SHARED_RANGES(
                () ->
                        new SequentialBlock()
                                .add(Linear.builder().setUnits(6).build())
                                .add(sharedRanges(2))
                                .add(Linear.builder().setUnits(5).build())),
        RANGES_OF_NEIGHBOURS(
                () ->
                        new SequentialBlock()
                                .add(Linear.builder().setUnits(6).build())
                                .add(sharedRanges(3))
                                .add(sharedRanges(3))
                                .add(Linear.builder().setUnits(5).build())),
        HEAD(() -> body().add(head().optFusedLoss(false).build())),
        FUSED_HEAD(() -> body().add(head().build())),
        SAMPLED_HEAD(() -> body().add(head().optSampleShare(0.5f).build())),
        BAG(() -> new SequentialBlock().add(new EmbeddingBag(20, 6)).add(head().build())),
        CONVOLUTION(
                () ->
                        new SequentialBlock()
                                .add(
                                        Conv2d.builder()
                                                .setFilters(4)
                                                .setKernelShape(new Shape(3, 3))
                                                .build())
                                .add(BatchNorm.builder().build())
                                .add(Blocks.batchFlattenBlock())
                                .add(head().build()));

        private final Supplier<Block> network;

        Case(Supplier<Block> network) {
            this.network = network;
        }

        boolean isClassifier() {
            return ordinal() >= HEAD.ordinal();
        }

        Shape input() {
            return this == CONVOLUTION ? new Shape(BATCH, 2, 5, 5) : new Shape(BATCH, 4);
        }

        Loss loss() {
            return isClassifier() ? new VocabParallelCrossEntropyLoss() : Loss.l2Loss();
        }

        NDList batch(NDManager manager) {
            return new NDList(
                    this == BAG
                            ? manager.arange(4f * BATCH)
                                    .mod(20)
                                    .toType(DataType.INT32, false)
                                    .reshape(BATCH, 4)
                            : manager.randomNormal(input()),
                    isClassifier()
                            ? manager.arange(BATCH)
                            : manager.randomNormal(new Shape(BATCH, 5)));
        }
    }

    private static ColumnParallelLinear.Builder column(long units) {
        return ColumnParallelLinear.builder().setUnits(units).optBatchShardedInput(true);
    }

    /** Features of which each rank has two in common with its neighbours. */
    private static Block sharedRanges(int ranks) {
        Cut cut = Cut.of(2 + 2L * ranks, ranks, rank -> List.of(new ShardRange(2L * rank, 4)));
        return column(cut.getLength())
                .optShardingStrategy(ShardingStrategy.rowwise(cut))
                .optGatherOutput(true)
                .build();
    }

    private static ClassificationHead.Builder head() {
        return ClassificationHead.builder().setUnits(9).optBatchShardedInput(true);
    }

    private static SequentialBlock body() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(6).build())
                .add(Activation::relu);
    }

    private static Optimizer optimizer(String name) {
        Tracker rate = Tracker.fixed(0.01f);
        switch (name) {
            case "sgd":
                return Optimizer.sgd().setLearningRateTracker(rate).build();
            case "adam":
                return Optimizer.adam().optLearningRateTracker(rate).build();
            default:
                return RowwiseAdagrad.builder().optLearningRateTracker(rate).build();
        }
    }

    @DataProvider
    public Object[][] cases() {
        List<Object[]> cases = new ArrayList<>();
        List<String> optimizers = List.of("sgd", "adam", "adagrad");
        List<DeviceMesh> meshes = new ArrayList<>();
        for (String mesh : List.of("1x1", "1x2", "1x3", "3x1", "2x2")) {
            meshes.add(DeviceMesh.parse(mesh));
        }
        meshes.add(DeviceMesh.of(ParallelMode.MIXED, 2));
        meshes.add(DeviceMesh.of(ParallelMode.MIXED, 3));
        for (Case each : Case.values()) {
            for (DeviceMesh mesh : meshes) {
                int tensor = mesh.getSize(DeviceMesh.TENSOR);
                if (each == Case.SHARED_RANGES && tensor > 2
                        || each == Case.RANGES_OF_NEIGHBOURS && tensor != 3) {
                    continue;
                }
                String optimizer = optimizers.get(cases.size() % optimizers.size());
                cases.add(new Object[] {each, mesh, optimizer});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    private static ModelCost cost(Block block, Loss loss, String mesh) {
        return ModelCost.builder()
                .setBlock(block)
                .setMesh(DeviceMesh.parse(mesh))
                .setInputs(new Shape(BATCH, 4))
                .setLoss(loss)
                .setOptimizer(optimizer("adam"))
                .build();
    }

    /** A network that is trained already keeps its weights. */
    @Test(timeOut = 60_000)
    public void valuesAndShapesOfANetworkStay() {
        Block block = Case.MLP.network.get();
        try (NDManager manager = NDManager.newBaseManager()) {
            block.initialize(manager, DataType.FLOAT32, new Shape(3, 4));
            NDArray weight = block.getParameters().get(0).getValue().getArray();
            float[] values = weight.toFloatArray();
            ModelCost cost = cost(block, Loss.l2Loss(), "1x2");
            Assert.assertEquals(cost.getTraffic(0).getTotal().calls(), 2);
            Assert.assertSame(block.getParameters().get(0).getValue().getArray(), weight);
            Assert.assertEquals(weight.toFloatArray(), values);
            Assert.assertEquals(block.getInputShapes(), new Shape[] {new Shape(3, 4)});
        }
    }

    @DataProvider
    public Object[][] refused() {
        return new Object[][] {
            {
                new SequentialBlock().add(column(8).build()).add(column(8).build()),
                "needs an input that is whole, and gets a slice"
            },
            {
                new SequentialBlock().add(RowParallelLinear.builder().setUnits(5).build()),
                "needs a slice of the features, and gets an input that is whole"
            },
            {
                new SequentialBlock().add(column(8).build()),
                "L2Loss cannot be computed of slices of the features"
            },
            {
                new SequentialBlock().add(column(1).optGatherOutput(true).build()),
                "cannot be cut over 2 ranks"
            },
        };
    }

    /** What a trainer would refuse is refused here, and leaves the network as it was. */
    @Test(dataProvider = "refused", timeOut = 60_000)
    public void whatCannotBeTrainedIsRefused(Block block, String message) {
        try {
            cost(block, Loss.l2Loss(), "1x2");
            Assert.fail("it was not refused");
        } catch (IllegalArgumentException e) {
            Assert.assertTrue(e.getMessage().contains(message), e.getMessage());
        }
        Assert.assertFalse(block.isInitialized());
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void costsAreThoseMeasured(Object network, DeviceMesh mesh, String optimizer) {
        Case each = (Case) network;
        Block block = each.network.get();
        ModelCost cost =
                ModelCost.builder()
                        .setBlock(block)
                        .setMesh(mesh)
                        .setInputs(each.input())
                        .setLoss(each.loss())
                        .setOptimizer(optimizer(optimizer))
                        .build();
        Assert.assertFalse(block.isInitialized(), "nothing is allocated");
        CountedStep step =
                CountedStep.run(block, each.loss(), optimizer(optimizer), mesh, each::batch);
        for (int rank = 0; rank < mesh.getRanks(); rank++) {
            String what = each + " on rank " + rank + " of " + mesh;
            Assert.assertEquals(cost.getRank(rank), step.cost(rank), what);
            if (!cost.getTraffic(rank).equals(step.table(rank))) {
                Assert.assertEquals(cost.getTraffic(rank).toString(), step.table(rank).toString());
            }
        }
    }
}
