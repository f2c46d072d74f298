package io.djltp.examples.bench;

import io.djltp.examples.bench.BenchTable.Row;

import org.jspecify.annotations.Nullable;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;

/** The table says when the machine was busy. */
public class BenchTableTest {

    @Test
    public void aBusyMachineIsNoticed() {
        Row floor = row(1, null);
        Assert.assertFalse(BenchTable.isDisturbed(row(1.5, 0.2), List.of(floor)));
        Assert.assertTrue(BenchTable.isDisturbed(row(1.5, 0.21), List.of(floor)));
        Assert.assertTrue(BenchTable.isDisturbed(row(0.9, 0.01), List.of(floor)));
        Assert.assertFalse(BenchTable.isDisturbed(floor, List.of(floor)));
    }

    private static Row row(double seconds, @Nullable Double spread) {
        return new Row(
                "head", "side", "8x9", "sgd", null, "float32", "1 x 1", seconds, spread, 1L, 1);
    }
}
