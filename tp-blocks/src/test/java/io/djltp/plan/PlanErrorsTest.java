package io.djltp.plan;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.ParameterStore;
import ai.djl.training.loss.Loss;
import ai.djl.util.PairList;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** A plan that does not fit is refused with what is wrong, and the network is as it was. */
public class PlanErrorsTest {

    /** A block that holds a layer in a place of any kind. */
    private static class Holder extends AbstractBlock {

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            return inputs;
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return inputShapes;
        }
    }

    private static final class Typed extends Holder {
        final Dropout drop = Dropout.builder().build();
    }

    private static final class Lists extends Holder {
        final List<Block> fixed = List.of(linear());
    }

    private record Pair(Block first) {}

    private static final class Everywhere extends Holder {
        private final Linear field = linear();
        private final List<Block> list = new ArrayList<>(List.of(linear(), field));
        private final Linear[] array = {linear()};
        private final Map<String, Linear> map = new HashMap<>(Map.of("key", linear()));
        private final Pair hidden = new Pair(linear());

        Everywhere() {
            addChildBlock("child", field);
        }
    }

    private static Linear linear() {
        return Linear.builder().setUnits(4).build();
    }

    private static SequentialBlock pair() {
        return new SequentialBlock()
                .add(linear())
                .add(Activation.reluBlock())
                .add(Linear.builder().setUnits(3).build());
    }

    private static void assertRefused(Block block, Plan plan, String... parts) {
        Block first = block.getChildren().isEmpty() ? null : block.getChildren().valueAt(0);
        IllegalArgumentException e =
                Assert.expectThrows(
                        IllegalArgumentException.class,
                        () -> TensorParallel.parallelize(block, plan));
        for (String part : parts) {
            Assert.assertTrue(e.getMessage().contains(part), part + " in: " + e.getMessage());
        }
        if (first != null) {
            Assert.assertSame(block.getChildren().valueAt(0), first);
        }
    }

    @Test
    public void aPatternThatMatchesNothing() {
        assertRefused(
                pair(), Plan.of("encoder.*", Style.column()), "\"encoder.*\"", "03Linear", "01Lin");
    }

    @Test
    public void aPatternThatMatchesOtherBlocks() {
        assertRefused(
                pair(), Plan.of("02*", Style.column()), "\"02*\"", "DJL's Linear", "(LambdaBlock)");
    }

    @Test
    public void aLayerThatIsCutTwice() {
        Plan plan = Plan.builder().add("01Linear", Style.column()).add("**", Style.row()).build();
        assertRefused(pair(), plan, "twice", "01Linear", "\"**\"");
    }

    @Test
    public void aLayerBelowABlockThatIsCut() {
        Plan plan =
                Plan.builder()
                        .add("*Bert*", Style.bert())
                        .add("**.outputBlock.01Linear", Style.column())
                        .build();
        assertRefused(
                PlannedNetworks.bert(PlannedNetworks.small(), true),
                plan,
                "twice",
                "takes all of 01BertBlock",
                "outputBlock.01Linear");
    }

    @Test
    public void aSliceWhereTheWholeIsNeeded() {
        assertRefused(
                pair(),
                Plan.of("01Linear", Style.column()),
                "01Linear",
                "03Linear",
                "needs the whole",
                "gatherOutput()");
        SequentialBlock normed = pair().add(LayerNorm.builder().build());
        assertRefused(normed, Plan.of("03Linear", Style.column()), "LayerNorm", "needs the whole");
    }

    @Test
    public void theWholeWhereASliceIsNeeded() {
        assertRefused(pair(), Plan.of("03Linear", Style.row()), "03Linear", "row().scatterInput()");
    }

    @Test
    public void aFieldOfAnotherClass() {
        assertRefused(
                new Typed(),
                Plan.of("drop", Style.dropout()),
                Typed.class.getName() + ".drop",
                "Declare it as a Block");
        Typed typed = new Typed();
        Assert.assertSame(TensorParallel.parallelize(typed, Plan.auto()), typed);
        Assert.assertSame(typed.drop.getClass(), Dropout.class);
    }

    @Test
    public void aListThatCannotBeChanged() {
        assertRefused(
                new Lists(),
                Plan.of("fixed.0", Style.column()),
                Lists.class.getName() + ".fixed",
                "ArrayList");
    }

    @Test
    public void placesOfEveryKindAreReplacedAndSharedBlocksOnce() {
        Everywhere block = new Everywhere();
        TensorParallel.parallelize(block, Plan.of("**", Style.column()));
        Assert.assertSame(block.field.getClass(), ColumnParallelLinear.class);
        Assert.assertSame(block.list.get(1), block.field);
        Assert.assertSame(block.getChildren().valueAt(0), block.field);
        Assert.assertEquals(block.getChildren().keyAt(0), "01child");
        Assert.assertSame(block.list.get(0).getClass(), ColumnParallelLinear.class);
        Assert.assertSame(block.array[0].getClass(), ColumnParallelLinear.class);
        Assert.assertSame(block.map.get("key").getClass(), ColumnParallelLinear.class);
        Assert.assertSame(block.hidden.first().getClass(), Linear.class); // not a place
        Assert.assertSame(TensorParallel.serialize(block), block);
        Assert.assertSame(block.field.getClass(), Linear.class);
        Assert.assertSame(block.list.get(1), block.field);
    }

    @Test
    public void theRootIsReturned() {
        Linear root = linear();
        Block parallel = TensorParallel.parallelize(root, Plan.of("", Style.column()));
        Assert.assertSame(parallel.getClass(), ColumnParallelLinear.class);
        Assert.assertEquals(parallel.getParameters(), root.getParameters());
        Assert.assertSame(TensorParallel.serialize(parallel).getClass(), Linear.class);
    }

    @Test
    public void aPlanForWhatIsParallelAlready() {
        Plan plan =
                Plan.builder().add("01Linear", Style.column()).add("03Linear", Style.row()).build();
        Block parallel = TensorParallel.parallelize(pair(), plan);
        assertRefused(
                parallel, plan, "01Linear (ColumnParallelLinear)", "column()", "DJL's Linear");
        Assert.assertSame(TensorParallel.parallelize(parallel, Plan.auto()), parallel);
        Assert.assertSame(parallel.getChildren().valueAt(0).getClass(), ColumnParallelLinear.class);
    }

    /** What comes between the layers of a block of one's own is only seen when it runs. */
    @Test(timeOut = 60_000)
    public void aSliceThatIsLeftInABlockOfOnesOwn() {
        refusedAtTheFirstStep(
                Plan.of("up.*", Style.column()),
                "ColumnParallelLinear (13, 6)",
                "optGatherOutput(true)");
        refusedAtTheFirstStep(
                Plan.of("down.*", Style.row()), "RowParallelLinear", "optInputIsParallel(false)");
        refusedAtTheFirstStep(Plan.of("out", Style.column()), "slice", "optGatherOutput(true)");
    }

    private static void refusedAtTheFirstStep(Plan plan, String... parts) {
        refused(
                () -> new PlannedNetworks.Residual(6, PlannedNetworks.CLASSES),
                plan,
                PlanCase.TENSOR_2,
                parts);
    }

    private static void refused(
            Supplier<Block> block, Plan plan, TrainerKind kind, String... parts) {
        Network.of(
                        cut -> cut ? TensorParallel.parallelize(block.get(), plan) : block.get(),
                        Loss::softmaxCrossEntropyLoss,
                        Network.classification(5, 6, PlannedNetworks.CLASSES))
                .assertRefused(kind, false, parts);
    }

    /** A sum over the features of a slice is a summand on each rank, which nobody adds up. */
    @Test(timeOut = 60_000)
    public void aPartialSumThatIsLeft() {
        refused(
                () ->
                        new SequentialBlock()
                                .add(linear())
                                .add(LambdaBlock.singleton(x -> x.sum(new int[] {1}, true)))
                                .add(Linear.builder().setUnits(PlannedNetworks.CLASSES).build()),
                Plan.of("01Linear", Style.column()),
                PlanCase.TENSOR_2,
                "ColumnParallelLinear",
                "optGatherOutput(true)");
    }

    @Test(timeOut = 60_000)
    public void anAttentionOfRowsThatMixedModeCuts() {
        Plan plan =
                Plan.builder()
                        .add("Scaled*", Style.attention())
                        .add("03Linear", Style.column().batchShardedInput().gatherOutput())
                        .build();
        Network.of(
                        cut -> {
                            Block block = PlannedNetworks.attention();
                            return cut ? TensorParallel.parallelize(block, plan) : block;
                        },
                        Loss::softmaxCrossEntropyLoss,
                        PlannedNetworks.sequences(4))
                .assertRefused(PlanCase.MIXED_2, false, "MIXED mode", "a mesh with an axis for");
    }

    /** The user of a plan has built no layer: what is missing is a style. */
    @Test(timeOut = 60_000)
    public void aPlanThatDoesNotSayWhereMixedModeGathers() {
        Supplier<Block> two = () -> new SequentialBlock().add(pair()).add(pair());
        refused(two, Plan.auto(), PlanCase.MIXED_2, "Style.column().batchShardedInput()", "mesh");
        Plan tooLate =
                Plan.builder()
                        .add("02*.01Linear", Style.column().batchShardedInput())
                        .optAuto(true)
                        .build();
        refused(two, tooLate, PlanCase.MIXED_2, "Style.column().batchShardedInput()", "(3, 6)");
    }
}
