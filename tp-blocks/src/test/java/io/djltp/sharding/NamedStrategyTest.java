package io.djltp.sharding;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;
import java.util.OptionalInt;
import java.util.function.Predicate;

/** Strategies know what they are, by what they do. */
public class NamedStrategyTest {

    private static final List<ShardingStrategy> ALL =
            List.of(
                    ShardingStrategy.rowwise(),
                    ShardingStrategy.columnwise(),
                    ShardingStrategy.gateUp(),
                    ShardingStrategy.stackedQkv(8, 2, 4),
                    ShardingStrategy.headAwareColumnwise(8, 4),
                    ShardingStrategy.headAwareRowwise(8, 4),
                    ShardingStrategy.tensorParallel(),
                    ShardingStrategy.expertParallel(),
                    ShardingStrategy.replicate());

    private static final List<Predicate<ShardingStrategy>> PREDICATES =
            List.of(
                    ShardingStrategy::isRowwise,
                    ShardingStrategy::isColwise,
                    ShardingStrategy::isGateUp,
                    ShardingStrategy::isStackedQkv,
                    ShardingStrategy::isHeadAwareColwise,
                    ShardingStrategy::isHeadAwareRowwise,
                    ShardingStrategy::isTensorParallel,
                    ShardingStrategy::isExpertParallel,
                    ShardingStrategy::isReplicated);

    @Test
    public void eachIsOfOneKind() {
        for (int i = 0; i < ALL.size(); i++) {
            for (int j = 0; j < PREDICATES.size(); j++) {
                ShardingStrategy strategy = ALL.get(i);
                Assert.assertEquals(PREDICATES.get(j).test(strategy), i == j, strategy + " " + j);
            }
        }
    }

    @Test
    public void theKindFollowsFromWhatIsDone() {
        Assert.assertTrue(ShardingStrategy.axiswise(0, Cut.ofLengths(5, 3)).isRowwise());
        Assert.assertTrue(ShardingStrategy.gateUp(2).isGateUp());
        Assert.assertFalse(ShardingStrategy.axiswise(2).isRowwise());
        ShardingStrategy parts =
                ShardingStrategy.segmented(
                        0,
                        AxisPart.heads(8, 4),
                        AxisPart.keyValueHeads(8, 2, 4),
                        AxisPart.keyValueHeads(8, 2, 4));
        Assert.assertTrue(parts.isStackedQkv());
        Assert.assertEquals(parts, ShardingStrategy.stackedQkv(8, 2, 4));
        Assert.assertEquals(parts.hashCode(), ShardingStrategy.stackedQkv(8, 2, 4).hashCode());
        Assert.assertEquals(
                ShardingStrategy.stackedQkv(8, 8, 4), ShardingStrategy.stackedQkv(8, 4));
        Assert.assertFalse(ShardingStrategy.segmented(0, AxisPart.even(4)).isStackedQkv());
        Assert.assertTrue(
                ShardingStrategy.withoutReplicas(ShardingStrategy.headAwareColumnwise(8, 4))
                        .isHeadAwareColwise());
    }

    @Test
    public void strategiesAreValues() {
        for (ShardingStrategy one : ALL) {
            for (ShardingStrategy other : ALL) {
                Assert.assertEquals(one.equals(other), one == other, one + ", " + other);
            }
        }
        Assert.assertEquals(ShardingStrategy.gateUp(), ShardingStrategy.gateUp(0));
        Assert.assertNotEquals(ShardingStrategy.gateUp(), ShardingStrategy.gateUp(1));
        Assert.assertNotEquals(
                ShardingStrategy.stackedQkv(8, 2, 4), ShardingStrategy.stackedQkv(8, 4, 4));
        Assert.assertNotEquals(AxisPart.even(8), AxisPart.heads(2, 4));
    }

    @Test
    public void theAxisAndTheNames() {
        Assert.assertEquals(ShardingStrategy.axiswise(-1).shardedAxis(), OptionalInt.of(-1));
        Assert.assertEquals(ShardingStrategy.gateUp().shardedAxis(), OptionalInt.of(0));
        Assert.assertEquals(
                ShardingStrategy.headAwareColumnwise(3, 4).shardedAxis(), OptionalInt.of(1));
        Assert.assertEquals(ShardingStrategy.replicate().shardedAxis(), OptionalInt.empty());
        Assert.assertEquals(ShardingStrategy.tensorParallel().shardedAxis(), OptionalInt.empty());
        Assert.assertEquals(ShardingStrategy.gateUp().toString(), "gateUp(0)");
        Assert.assertEquals(ShardingStrategy.stackedQkv(8, 2, 4).toString(), "stackedQkv(8, 2, 4)");
        Assert.assertEquals(
                ShardingStrategy.segmented(1, AxisPart.even(3), AxisPart.heads(2, 4)).toString(),
                "segmented(1, even(3), heads(2, 4))");
        Assert.assertEquals(ShardingStrategy.expertParallel().toString(), "expertParallel");
    }

    @Test
    public void whatABlockResolvesHasNoCut() {
        for (ShardingStrategy strategy : ALL.subList(6, 8)) {
            IllegalArgumentException e =
                    Assert.expectThrows(
                            IllegalArgumentException.class,
                            () -> strategy.checkSplit("w", new Shape(4, 3), 2));
            for (String part : new String[] {strategy.toString(), "(4, 3)", "rowwise()"}) {
                Assert.assertTrue(e.getMessage().contains(part), e.getMessage());
            }
            Assert.expectThrows(
                    IllegalArgumentException.class, () -> strategy.cut(new Shape(4, 3), 2));
        }
    }

    @Test
    public void numbersThatAreNone() {
        for (Runnable wrong :
                new Runnable[] {
                    () -> ShardingStrategy.stackedQkv(0, 4),
                    () -> ShardingStrategy.stackedQkv(4, 0, 4),
                    () -> ShardingStrategy.headAwareColumnwise(4, 0),
                    () -> AxisPart.even(0),
                    () -> ShardingStrategy.segmented(0),
                    () -> AxisPart.heads(Cut.ofLengths(4, 0), 2),
                }) {
            Assert.expectThrows(IllegalArgumentException.class, wrong::run);
        }
    }
}
