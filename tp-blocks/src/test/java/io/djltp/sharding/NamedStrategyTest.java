package io.djltp.sharding;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;

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

    @Test
    public void strategiesThatDoTheSameAreEqual() {
        ShardingStrategy parts =
                ShardingStrategy.segmented(
                        0,
                        AxisPart.heads(8, 4),
                        AxisPart.keyValueHeads(8, 2, 4),
                        AxisPart.keyValueHeads(8, 2, 4));
        Assert.assertEquals(parts, ShardingStrategy.stackedQkv(8, 2, 4));
        Assert.assertEquals(parts.hashCode(), ShardingStrategy.stackedQkv(8, 2, 4).hashCode());
        Assert.assertEquals(
                ShardingStrategy.stackedQkv(8, 8, 4), ShardingStrategy.stackedQkv(8, 4));
        for (ShardingStrategy each : ALL) {
            Assert.assertEquals(each.isTensorParallel(), each == ALL.get(6));
            Assert.assertEquals(each.isExpertParallel(), each == ALL.get(7));
            Assert.assertEquals(each.isReplicated(), each == ALL.get(8));
        }
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
    public void theNames() {
        Assert.assertEquals(ShardingStrategy.gateUp().toString(), "gateUp(0)");
        Assert.assertEquals(
                ShardingStrategy.stackedQkv(8, 2, 4).toString(),
                "segmented(0, heads(8, 4), keyValueHeads(8, 2, 4), keyValueHeads(8, 2, 4))");
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
