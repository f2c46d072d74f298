package io.djltp.internal.head;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.internal.torch.DropoutMask;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.ReferenceUpdate;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.testing.TestCases;
import io.djltp.torch.Precision;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** Weights in 16 bits: rounded at random after each step, with all else in 32 bits. */
public class SixteenBitHeadTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 23;

    @DataProvider
    public Object[][] cases() {
        Margin margin = Margin.arcFace(8, 0.3f);
        List<HeadOptions> heads = new ArrayList<>();
        heads.add(HeadStep.FLOAT32);
        heads.add(HeadStep.of(0.5f, null));
        heads.add(HeadStep.of(1, margin));
        heads.add(HeadStep.of(0.5f, margin));
        if (Precision.BFLOAT16.whyNot(Device.cpu()).isEmpty()) {
            heads.add(HeadStep.in(Precision.BFLOAT16));
        }
        ScalarType[] types = {ScalarType.BFloat16, ScalarType.Half};
        return TestCases.product(types, ReferenceUpdate.Kind.values(), heads.toArray());
    }

    /**
     * Five steps equal those of a float32 weight that is rounded at random to 16 bits after each of
     * them, to the last bit: the state is not rounded.
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
                    try (ChunkedHead ofNarrow = function(head);
                            ChunkedHead ofWide = function(head);
                            WeightUpdate narrowUpdate = kind.update(settings);
                            WeightUpdate wideUpdate = kind.update(settings)) {
                        for (int i = 1; i <= 5; i++) {
                            NDArray x = to(data.x(manager).mul(i), type);
                            NDArray wideX = to(x, ScalarType.Float);
                            ChunkedHead.Result actual =
                                    HeadStep.train(ofNarrow, x, narrow, labels, narrowUpdate, i);
                            ChunkedHead.Result expected =
                                    HeadStep.train(ofWide, wideX, wide, labels, wideUpdate, i);
                            Assert.assertEquals(actual.value(), expected.value());
                            NDArray gradient = actual.gradient(); // comes back in 16 bits
                            Assert.assertEquals(gradient.getDataType(), x.getDataType());
                            Assert.assertEquals(
                                    to(gradient, ScalarType.Float),
                                    to(to(expected.gradient(), type), ScalarType.Float));
                            wide = rounded(wide, type, head.sampleSeed(), i - 1);
                            Assert.assertEquals(
                                    to(narrow, ScalarType.Float).toFloatArray(),
                                    wide.toFloatArray());
                        }
                    }
                });
    }

    private static ChunkedHead function(HeadOptions head) {
        return new ChunkedHead(null, Cut.ofLengths(CLASSES), 2 * 4 * ROWS * Float.BYTES, 4, head);
    }

    /** Rounds a weight at random, as the step does. */
    private static NDArray rounded(NDArray wide, ScalarType type, long seed, long step) {
        Tensor rows = TensorView.of(wide).tensor();
        long key = DropoutMask.key(seed, step);
        new StochasticRounding(key, column -> column, rows.to(type)).apply(0, rows);
        return to(to(wide, type), ScalarType.Float);
    }

    @DataProvider
    public Object[][] types() {
        return new Object[][] {{ScalarType.BFloat16}, {ScalarType.Half}};
    }

    /** Ten steps of a one-vs-all loss in one pass, in chunks that are not those of one rank. */
    @Test(dataProvider = "types", timeOut = 60_000)
    public void weightsAreTheSameOnAnyNumberOfRanks(ScalarType type) throws Exception {
        float[] alone = weightAfterTenSteps(Cut.balanced(CLASSES, 1), type);
        for (Cut cut :
                new Cut[] {
                    Cut.balanced(CLASSES, 2),
                    Cut.balanced(CLASSES, 3),
                    Cut.balanced(CLASSES, 4),
                    Cut.ofLengths(3, 19, 1)
                }) {
            Assert.assertEquals(weightAfterTenSteps(cut, type), alone, cut.toString());
        }
    }

    private static float[] weightAfterTenSteps(Cut cut, ScalarType type) throws Exception {
        int rows = 16; // whole vectors, whatever the number of classes
        float[] all = new float[CLASSES * FEATURES];
        RankThreads.run(
                cut.getRanks(),
                (group, manager) -> {
                    HeadReference data = new HeadReference(3, 1, rows, FEATURES, CLASSES);
                    List<ShardRange> own = cut.getRanges(group.getRank());
                    NDArray weight = to(data.weight(manager, own), type);
                    OneVsAll.Kind kind = OneVsAll.Kind.BINARY_CROSS_ENTROPY;
                    OneVsAll loss = new OneVsAll(kind, new LossOptions(-1, 0, 0), null);
                    HeadOptions head = new HeadOptions(1, 7, null, Precision.FLOAT32, false, true);
                    try (ChunkedHead fused = new ChunkedHead(group, cut, 1 << 20, 4, head);
                            WeightUpdate update = HeadStep.rateOne()) {
                        ChunkedHead.InLoss now = new ChunkedHead.InLoss(update, null);
                        for (int i = 0; i < 10; i++) {
                            update.begin(0.01f, i + 1);
                            fused.evaluateOneVsAll(
                                    data.x(manager), weight, null, data.labels(manager), loss, now);
                        }
                    }
                    float[] values = to(weight, ScalarType.Float).toFloatArray();
                    System.arraycopy(
                            values, 0, all, (int) own.get(0).start() * FEATURES, values.length);
                });
        return all;
    }

    /** Updates by less than half of the distance of two numbers are not lost. */
    @Test(timeOut = 60_000)
    public void learnsInBFloat16WhereRoundingToTheNearestStandsStill() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    float before = lossAfter(manager, 0, null, false);
                    float wide = lossAfter(manager, 300, null, false);
                    float nearest = lossAfter(manager, 300, ScalarType.BFloat16, true);
                    float random = lossAfter(manager, 300, ScalarType.BFloat16, false);
                    Assert.assertTrue(wide < 0.9f * before, before + " became " + wide);
                    Assert.assertEquals(nearest, before, 0.02f * before, "nearest");
                    Assert.assertEquals(random, wide, 0.1f * (before - wide), "at random");
                });
    }

    /**
     * Trains on one batch by heart, at a rate that changes weights by a thousandth at most.
     *
     * @param type the type of the weight, or {@code null} for float32
     * @param nearest whether a weight in float32 is rounded to the nearest of the type instead
     */
    private static float lossAfter(NDManager manager, int steps, ScalarType type, boolean nearest) {
        HeadReference data = new HeadReference(5, 1, 16, 32, CLASSES);
        NDArray start = data.weight(manager).sign(); // 1 or -1, whose neighbours are 2^-8 away
        NDArray weight = type == null || nearest ? start : to(start, type);
        NDArray x = data.x(manager);
        NDArray labels = data.labels(manager);
        float loss = 0;
        try (ChunkedHead fused =
                        new ChunkedHead(
                                null, Cut.ofLengths(CLASSES), 1 << 20, 8, HeadStep.FLOAT32);
                WeightUpdate update = HeadStep.rateOne()) {
            for (int i = 0; i <= steps; i++) {
                ChunkedHead.Result result =
                        fused.evaluate(x, weight, null, labels, LossOptions.DEFAULT);
                loss = result.value().getFloat();
                update.begin(0.005f, i + 1);
                fused.update(weight, null, null, update, 1, null);
                if (nearest) {
                    weight = to(to(weight, type), ScalarType.Float);
                }
            }
        }
        return loss;
    }

    /** DJL cannot make bfloat16. */
    private static NDArray to(NDArray array, ScalarType type) {
        return TensorView.toArray(TensorView.of(array).tensor().to(type), array.getManager());
    }
}
