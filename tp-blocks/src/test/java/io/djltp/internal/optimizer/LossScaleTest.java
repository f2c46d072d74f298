package io.djltp.internal.optimizer;

import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.throwsArgument;

import static org.testng.Assert.assertEquals;

import io.djltp.internal.libtorch.LibTorch;
import io.djltp.rank.LossScaling;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.IValueVector;
import org.bytedeco.pytorch.JitModule;
import org.bytedeco.pytorch.QualifiedName;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.testng.annotations.Test;

import java.util.SplittableRandom;
import java.util.function.UnaryOperator;

/** The scale of a loss follows the gradients as PyTorch's does. */
@SuppressWarnings("try") // a scope is used by being open
public class LossScaleTest {

    private static LossScaling.Builder settings() {
        return LossScaling.builder();
    }

    /** By hand: 3 good steps double the scale, a bad one halves it and begins to count anew. */
    @Test
    public void aSeriesByHand() {
        LossScale scale = new LossScale(settings().optInitialScale(8).optGrowthInterval(3).build());
        String steps = "+++ ++- ++- - +++ +++";
        float[] expected = {8, 8, 16, 16, 16, 8, 8, 8, 4, 2, 2, 2, 4, 4, 4, 8};
        int number = 0;
        for (char step : steps.replace(" ", "").toCharArray()) {
            scale.update(step == '+', number + 1);
            assertEquals(scale.get(), expected[number++], 0f, "after step " + number);
        }
        assertEquals(number, expected.length);
        assertEquals(scale.getState(), new LossScale.State(8, 0, 3));
    }

    @Test
    public void whatIsSetIfNothingIsSaidIsWhatPyTorchHas() {
        LossScaling made = settings().build();
        assertEquals(made.getInitialScale(), 65536f);
        assertEquals(made.getGrowthFactor(), 2f);
        assertEquals(made.getBackoffFactor(), 0.5f);
        assertEquals(made.getGrowthInterval(), 2000);
    }

    /**
     * The operation by which {@code GradScaler.update()} has its next scale, on the same random
     * steps: also where the scale would be infinite, and with factors that are no powers of 2.
     */
    @Test(timeOut = 60_000)
    public void theSeriesIsThatOfPyTorch() {
        LibTorch.load();
        compare(65536, 2, 0.5f, 5, 0.05);
        compare(65536, 1.7f, 0.3f, 2, 0.2);
        compare(Float.MAX_VALUE / 3, 2, 0.5f, 1, 0.1);
        compare(3, 1.001f, 0.999f, 1, 0.5);
    }

    private static void compare(
            float first, float growth, float backoff, int interval, double bad) {
        LossScale own =
                new LossScale(
                        settings()
                                .optInitialScale(first)
                                .optGrowthFactor(growth)
                                .optBackoffFactor(backoff)
                                .optGrowthInterval(interval)
                                .optLeastScale(Float.MIN_VALUE)
                                .build());
        SplittableRandom random = new SplittableRandom(interval);
        try (PointerScope scope = new PointerScope()) {
            JitModule module = new JitModule(new QualifiedName("Scaler"));
            module.define(
                    "def forward(self, scale, tracker, found, growth: float, backoff: float,"
                            + " interval: int):\n"
                            + "    return torch._amp_update_scale_(scale, tracker, found, growth,"
                            + " backoff, interval)\n");
            Tensor scale = torch.tensor(first);
            Tensor tracker = torch.tensor(0);
            for (int step = 1; step <= 500; step++) {
                boolean finite = random.nextDouble() >= bad;
                own.update(finite, step);
                module.forward(
                        new IValueVector(
                                new IValue(scale),
                                new IValue(tracker),
                                new IValue(torch.tensor(finite ? 0f : 1f)),
                                new IValue((double) growth),
                                new IValue((double) backoff),
                                new IValue((long) interval)));
                assertEquals(own.get(), scale.item_float(), 0f, "scale after " + step);
                assertEquals(own.getState().goodSteps(), tracker.item_int());
            }
        }
    }

    /** Gradients that no scale makes finite have another cause. */
    @Test
    public void aScaleThatIsTooSmallIsAnError() {
        LossScale scale = new LossScale(settings().optInitialScale(4).optLeastScale(1).build());
        scale.update(false, 1);
        scale.update(false, 2);
        expect(
                ArithmeticException.class,
                () -> scale.update(false, 3),
                "step 3 .. a loss scale of 1.0 .. the least is 1.0");
        assertEquals(scale.getState(), new LossScale.State(1, 0, 2));
    }

    @Test
    public void badSettings() {
        assertRefused(s -> s.optInitialScale(0), "above 0 and finite, not 0.0");
        assertRefused(s -> s.optInitialScale(Float.NaN), "above 0 and finite, not NaN");
        assertRefused(s -> s.optInitialScale(Float.POSITIVE_INFINITY), "finite, not Infinity");
        assertRefused(s -> s.optGrowthFactor(1), "above 1 and finite, not 1.0");
        assertRefused(s -> s.optBackoffFactor(1), "above 0 and below 1, not 1.0");
        assertRefused(s -> s.optBackoffFactor(0), "above 0 and below 1, not 0.0");
        assertRefused(s -> s.optGrowthInterval(0), "1 step or more, not 0");
        assertRefused(s -> s.optLeastScale(70000), "up to the first, 65536.0, not 70000.0");
        assertRefused(s -> s.optLeastScale(0), "above 0 and up to the first, 65536.0, not 0.0");
    }

    private static void assertRefused(UnaryOperator<LossScaling.Builder> change, String part) {
        throwsArgument(() -> change.apply(settings()).build(), part);
    }
}
