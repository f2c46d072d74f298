package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.head.Margin;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.ReferenceUpdate;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.testing.TestCases;

import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** Weights in 16 bits: rounded after each step, with everything else in 32 bits. */
public class SixteenBitHeadTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 23;

    @DataProvider
    public Object[][] cases() {
        Margin margin = Margin.arcFace(8, 0.3f);
        HeadOptions[] heads = {
            HeadStep.FLOAT32,
            HeadStep.of(0.5f, null),
            HeadStep.of(1, margin),
            HeadStep.of(0.5f, margin)
        };
        ScalarType[] types = {ScalarType.BFloat16, ScalarType.Half};
        return TestCases.product(types, ReferenceUpdate.Kind.values(), heads);
    }

    /**
     * Five steps equal those of a float32 weight that is rounded to 16 bits after each of them, to
     * the last bit: the state is not rounded.
     */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void equalsARoundedWeight(ScalarType type, ReferenceUpdate.Kind kind, HeadOptions head)
            throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    HeadReference data = new HeadReference(3, 1, ROWS, FEATURES, CLASSES);
                    NDArray narrow = to(data.weight(manager), type);
                    NDArray wide = to(narrow, ScalarType.Float);
                    NDArray labels = data.labels(manager);
                    WeightUpdate.Settings settings = new WeightUpdate.Settings(0.1f, 1, -1);
                    try (FusedSoftmaxHead ofNarrow = function(head);
                            FusedSoftmaxHead ofWide = function(head);
                            WeightUpdate narrowUpdate = kind.update(settings);
                            WeightUpdate wideUpdate = kind.update(settings)) {
                        for (int i = 1; i <= 5; i++) {
                            NDArray x = to(data.x(manager).mul(i), type);
                            NDArray wideX = to(x, ScalarType.Float);
                            FusedSoftmaxHead.Result actual =
                                    HeadStep.train(ofNarrow, x, narrow, labels, narrowUpdate, i);
                            FusedSoftmaxHead.Result expected =
                                    HeadStep.train(ofWide, wideX, wide, labels, wideUpdate, i);
                            Assert.assertEquals(actual.value(), expected.value());
                            NDArray gradient = actual.gradient(); // comes back in 16 bits
                            Assert.assertEquals(gradient.getDataType(), x.getDataType());
                            Assert.assertEquals(
                                    to(gradient, ScalarType.Float),
                                    to(to(expected.gradient(), type), ScalarType.Float));
                            wide = to(to(wide, type), ScalarType.Float);
                            Assert.assertEquals(
                                    to(narrow, ScalarType.Float).toFloatArray(),
                                    wide.toFloatArray());
                        }
                    }
                });
    }

    private static FusedSoftmaxHead function(HeadOptions head) {
        return new FusedSoftmaxHead(
                null, Cut.ofLengths(CLASSES), 2 * 4 * ROWS * Float.BYTES, 4, head);
    }

    /** DJL cannot make bfloat16. */
    private static NDArray to(NDArray array, ScalarType type) {
        return TensorView.toArray(TensorView.of(array).tensor().to(type), array.getManager());
    }
}
