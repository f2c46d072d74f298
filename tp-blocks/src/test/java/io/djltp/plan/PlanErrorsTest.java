package io.djltp.plan;

import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.nn.transformer.TransformerEncoderBlock;
import ai.djl.training.ParameterStore;
import ai.djl.training.loss.Loss;
import ai.djl.util.PairList;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.SequenceGather;
import io.djltp.nn.SequenceScatter;
import io.djltp.testing.Blocks;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** A plan that does not fit is refused with what is wrong, and the network is as it was. */
public class PlanErrorsTest {
    private static final int CLASSES = PlannedNetworks.CLASSES;

    /** A block that holds a layer in a place of any kind. */
    private static class Holder extends AbstractBlock {

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList inputs, boolean training, PairList<String, Object> p) {
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
        return Blocks.linear(4);
    }

    private static SequentialBlock pair() {
        return Blocks.sequence(linear(), Activation.reluBlock(), Blocks.linear(3));
    }

    private static void assertRefused(Block block, Plan plan, String... parts) {
        Block first = block.getChildren().isEmpty() ? null : block.getChildren().valueAt(0);
        Refusals.throwsArgument(() -> TensorParallel.parallelize(block, plan), parts);
        if (first != null) {
            Assert.assertSame(block.getChildren().valueAt(0), first);
        }
    }

    /** The network, the plan, and what is said of them. */
    @DataProvider
    public static Object[][] plans() {
        Plan twice = Plan.builder().add("01Linear", Style.column()).add("**", Style.row()).build();
        Plan below =
                Plan.builder()
                        .add("*Bert*", Style.bert())
                        .add("**.outputBlock.01Linear", Style.column())
                        .build();
        return new Object[][] {
            {pair(), Plan.of("encoder.*", Style.column()), "\"encoder.*\"|03Linear|01Lin"},
            {pair(), Plan.of("02*", Style.column()), "\"02*\"|DJL's Linear|(LambdaBlock)"},
            {pair(), twice, "twice|01Linear|\"**\""},
            {
                PlannedNetworks.bert(PlannedNetworks.small(), true),
                below,
                "twice|takes all of 01BertBlock|outputBlock.01Linear"
            },
            {
                new Typed(),
                Plan.of("drop", Style.dropout()),
                Typed.class.getName() + ".drop|Declare it as a Block"
            },
            {
                new Lists(),
                Plan.of("fixed.0", Style.column()),
                Lists.class.getName() + ".fixed|ArrayList"
            },
        };
    }

    @Test(dataProvider = "plans")
    public void aPlanThatDoesNotFit(Block block, Plan plan, String parts) {
        assertRefused(block, plan, parts.split("\\|"));
    }

    @Test
    public void whatCannotBeReplacedStaysWithoutAPattern() {
        Typed typed = new Typed();
        String said = Refusals.logged(() -> TensorParallel.parallelize(typed, Plan.auto()));
        Assert.assertTrue(said.contains("drop (Dropout) stays as it is"), said);
        Assert.assertSame(typed.drop.getClass(), Dropout.class);
    }

    /** The fields of DJL's classes are not the user's to change. */
    @Test
    public void noWarningOfWhatDjlHolds() {
        Block encoder = new TransformerEncoderBlock(6, 2, 8, 0.1f, Activation::relu);
        Plan plan = Plan.builder().optAuto(true).optRanks(5).build(); // more than its heads
        String said = Refusals.logged(() -> TensorParallel.parallelize(encoder, plan));
        Assert.assertFalse(said.contains("stays as it is"), said);
    }

    /** What a plan has done is one line, and says nothing of what stays. */
    @Test
    public void aPlanIsToldInALine() {
        Plan plan =
                Plan.builder()
                        .add("01Linear", Style.column())
                        .add("03Linear", Style.row())
                        .add("02*", Style.replicate())
                        .build();
        Assert.assertEquals(
                TensorParallel.describe(plan.assign(new BlockTree(pair()))),
                "The plan replaces 2 block(s): 01Linear (Linear) by column(), 03Linear (Linear) by"
                        + " row()");
        SequentialBlock many = new SequentialBlock();
        for (int i = 0; i < 50; i++) {
            many.add(linear());
        }
        String told =
                TensorParallel.describe(Plan.of("**", Style.column()).assign(new BlockTree(many)));
        Assert.assertTrue(told.startsWith("The plan replaces 50 block(s): 01Linear"), told);
        Assert.assertTrue(told.endsWith("20Linear (Linear) by column(), ..."), told);
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

    /** What comes between layers is only seen when it runs: network, plan, trainer, message. */
    @DataProvider
    public static Object[][] steps() {
        Supplier<Block> own = () -> new PlannedNetworks.Residual(6, CLASSES);
        Supplier<Block> pair =
                () -> Blocks.sequence(linear(), Blocks.relu(), Blocks.linear(CLASSES));
        Supplier<Block> normed =
                () ->
                        Blocks.sequence(
                                linear(),
                                Blocks.relu(),
                                Blocks.linear(CLASSES),
                                LayerNorm.builder().build());
        Supplier<Block> summed =
                () ->
                        Blocks.sequence(
                                linear(),
                                Blocks.map(x -> x.sum(new int[] {1}, true)),
                                Blocks.linear(CLASSES));
        Supplier<Block> two = () -> Blocks.sequence(pair(), pair());
        Supplier<Block> concatenated = () -> PlannedNetworks.sideBySide((x, y) -> x.concat(y, 1));
        Plan tooLate =
                Plan.builder()
                        .add("02*.01Linear", Style.column().batchShardedInput())
                        .optAuto(true)
                        .build();
        Style column = Style.column();
        Style row = Style.row();
        String gather = "optGatherOutput(true)";
        String whole = "optInputIsParallel(false)";
        String gathers = "Style.column().batchShardedInput()";
        return new Object[][] {
            {own, Plan.of("up.*", column), TENSOR_2, "ColumnParallelLinear (13, 6)|" + gather},
            {own, Plan.of("down.*", row), TENSOR_2, "RowParallelLinear|" + whole},
            {own, Plan.of("out", column), TENSOR_2, "slice|" + gather},
            {
                pair,
                Plan.of("01Linear", column),
                TENSOR_2,
                "ColumnParallelLinear (4, 6)|RowParallelLinear|" + gather
            },
            {normed, Plan.of("03Linear", column), TENSOR_2, "layerNorm does not commute|" + gather},
            {pair, Plan.of("03Linear", row), TENSOR_2, "RowParallelLinear|(5, 4)|" + whole},
            // a sum over the features of a slice is a summand on each rank, which nobody adds up
            {summed, Plan.of("01Linear", column), TENSOR_2, "ColumnParallelLinear|" + gather},
            // of slices of both, one after another, a rank's part is none of the whole
            {
                concatenated,
                PlansEqualDjlTest.SIDE_BY_SIDE,
                TENSOR_2,
                "ColumnParallelLinear|" + gather
            },
            // the user of a plan has built no layer: what is missing is a style
            {two, Plan.auto(), MIXED_2, gathers + "|mesh"},
            {two, tooLate, MIXED_2, gathers + "|(3, 6)"},
        };
    }

    @Test(dataProvider = "steps", timeOut = 60_000)
    public void theFirstStepIsRefused(
            Supplier<Block> block, Plan plan, TrainerKind kind, String parts) {
        Network.of(
                        cut -> cut ? TensorParallel.parallelize(block.get(), plan) : block.get(),
                        Loss::softmaxCrossEntropyLoss,
                        Network.classification(5, 6, CLASSES))
                .assertRefused(kind, parts.split("\\|"));
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
                        PlannedNetworks.numbers(4, PlannedNetworks.LENGTH, 12))
                .assertRefused(MIXED_2, false, "MIXED mode", "a mesh with an axis for");
    }

    /** The encoder of DJL's BERT has no form with cut tokens. */
    @Test(timeOut = 60_000)
    public void anEncoderOfCutTokens() {
        Network.of(
                        cut ->
                                Blocks.sequence(
                                        cut ? new SequenceScatter() : Blocks.map(x -> x),
                                        TensorParallel.parallelize(
                                                new TransformerEncoderBlock(
                                                        6, 2, 8, 0, Activation::relu),
                                                Plan.auto()),
                                        cut ? new SequenceGather() : Blocks.map(x -> x)),
                        HalfSquareLoss::new,
                        Network.batches("2x4x6", "2x4x6"))
                .assertRefused(
                        TENSOR_2,
                        "gets this rank's tokens, (2, 2, 6), of a sequence-parallel region, and"
                                + " needs all",
                        "SequenceGather");
    }
}
