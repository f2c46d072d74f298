package io.djltp.conformance;

import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.ndarray.types.DataType;

import io.djltp.conformance.SweptMutant.Error;
import io.djltp.conformance.SweptPart.Layout;
import io.djltp.testing.TrainerKind;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;

/** What the comparison of {@link RandomSweepTest} finds, and what it lets pass. */
public class SweptComparisonTest {

    private static final SweptEnd END = new SweptEnd(3, false, false, true, null, false);

    @DataProvider
    public Object[][] errors() {
        return new Object[][] {{Error.GRADIENT_SCALE}, {Error.BIAS_TWICE}, {Error.MISSING_SUMMAND}};
    }

    /** Whatever the optimizer and the type. */
    @Test(dataProvider = "errors", timeOut = 60_000)
    public void anErrorIsFound(Error error) {
        for (int optimizer = 0; optimizer < 3; optimizer++) {
            for (DataType type : List.of(DataType.FLOAT32, DataType.FLOAT64)) {
                SweptCase drawn = drawn(tree(0, new SweptMutant(5, Error.NONE)), optimizer, type);
                SweptComparison comparison = new SweptComparison();
                Assert.assertEquals(comparison.check(drawn), List.of());
                SweptTree wrong = tree(0, new SweptMutant(5, error));
                Assert.assertNotEquals(comparison.check(drawn, wrong), List.of());
            }
        }
    }

    /**
     * The bias of keys has no effect: its gradient is what is left of summands that cancel, which
     * is as large under DJL as on ranks. A thousand times as much is an error.
     */
    @Test(timeOut = 60_000)
    public void whatIsLeftOfSummandsThatCancel() {
        SweptAttention attention =
                new SweptAttention(
                        4, 3, 1, 2, true, false, false, false, false, false, false, Layout.WHOLE);
        SweptCase drawn = drawn(tree(3, attention), 0, DataType.FLOAT32);
        SweptRounding rounding = new SweptRounding(drawn, SweptTraining::gradients, true);
        Map<String, double[]> plain = SweptTraining.of(drawn, PLAIN).gradients();
        Map<String, double[]> ranks = SweptTraining.of(drawn, drawn.kind()).gradients();
        String name =
                plain.keySet().stream().filter(key -> key.endsWith("key_bias")).findAny().get();
        double[] left = ranks.get(name);
        double size = SweptDifference.largest(plain.get(name));
        Assert.assertTrue(SweptDifference.of(left, plain.get(name)) > 1e-5 * size, name);
        Assert.assertTrue(rounding.explains(name, left, null), name);
        double[] wrong = left.clone();
        wrong[0] += 1000 * size;
        Assert.assertFalse(rounding.explains(name, wrong, null), name);
    }

    @Test
    public void whatIsNoNumberDiffers() {
        double[] one = {1, 2};
        Assert.assertEquals(SweptDifference.of(one, new double[] {1, 2.5}), 0.5);
        double infinite = Double.POSITIVE_INFINITY;
        Assert.assertEquals(SweptDifference.of(new double[] {1, Double.NaN}, one), infinite);
        Assert.assertEquals(SweptDifference.of(new double[] {1}, one), infinite);
        Assert.assertEquals(SweptDifference.largest(new double[] {Double.NaN}), infinite);
    }

    /** A case is that of its seed. */
    @Test
    public void casesFollowTheSeed() {
        Assert.assertEquals(SweptCase.of(7).toString(), SweptCase.of(7).toString());
        Assert.assertNotEquals(SweptCase.of(7).toString(), SweptCase.of(8).toString());
        Draws draws = new Draws(new SplittableRandom(1), 4, 0);
        for (int i = 0; i < 100; i++) {
            Assert.assertTrue(draws.cutLength(3) >= 4);
        }
    }

    private static SweptTree tree(int tokens, SweptPart part) {
        return new SweptTree(tokens, 5, null, List.of(plain(tokens), part), END);
    }

    private static SweptPart plain(int tokens) {
        return new SweptPlain(4, tokens == 0 ? 1 : 2, SweptPlain.Norm.TANH);
    }

    private static SweptCase drawn(SweptTree tree, int optimizer, DataType type) {
        return new SweptCase(5, tree, TrainerKind.mesh(1, 2), 4, optimizer, type);
    }
}
