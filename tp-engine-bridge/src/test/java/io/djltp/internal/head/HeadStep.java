package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.torch.Precision;

import org.testng.Assert;

import java.util.Arrays;
import java.util.List;

/** A loss of a fused head on the ranks of a cut, and its gradients over all of them. */
final class HeadStep {

    static final HeadOptions FLOAT32 = HeadOptions.DEFAULT;
    static final LossOptions PLAIN = LossOptions.DEFAULT;
    static final LossOptions SMOOTH = new LossOptions(-100, 0.1f, 0);
    static final LossOptions EVERYTHING = new LossOptions(3, 0.2f, 0.05f);

    /**
     * How it is computed.
     *
     * @param cut the cut of the classes
     * @param budget the bytes of logits
     * @param chunk the classes of a chunk
     * @param lanes the threads of a rank
     * @param biased whether there is a bias
     */
    record Way(Cut cut, long budget, long chunk, int lanes, boolean biased) {

        static Way of(Cut cut) {
            return new Way(cut, 1 << 20, 4, 1, true);
        }

        static Way unbiased(Cut cut) {
            return new Way(cut, 1 << 20, 4, 1, false);
        }
    }

    float loss;
    final float[] ofFeatures;
    final float[] ofWeight;
    final float[] ofBias;

    private HeadStep(HeadReference data) {
        ofFeatures = new float[data.x.length];
        ofWeight = new float[data.weight.length];
        ofBias = new float[data.classes];
    }

    /**
     * Takes the gradients from an update at the rate 1 of a loss times 0.5, checks that each pass
     * has one collective, none for one rank, and that the loss leaves the weight as it is.
     */
    static HeadStep updated(HeadReference data, Way way, HeadOptions head, LossOptions loss)
            throws Exception {
        return run(data, way, head, loss, 0.5f, true);
    }

    /** Adds up the gradients in a sum: those of a weight would lose digits. */
    static HeadStep summed(
            HeadReference data, Way way, HeadOptions head, LossOptions loss, float scale)
            throws Exception {
        return run(data, way, head, loss, scale, false);
    }

    private static HeadStep run(
            HeadReference data,
            Way way,
            HeadOptions head,
            LossOptions loss,
            float scale,
            boolean updates)
            throws Exception {
        HeadStep step = new HeadStep(data);
        int ranks = way.cut.getRanks();
        RankThreads.run(
                ranks,
                (group, manager) -> {
                    Autograd.setThreads(way.lanes);
                    List<ShardRange> own = way.cut.getRanges(group.getRank());
                    NDArray w = data.weight(manager, own);
                    NDArray b = way.biased ? data.bias(manager, own) : null;
                    NDArray before = w.duplicate();
                    NDArray ofWeight = w.onesLike(); // what is there does not count
                    NDArray ofBias = way.biased ? b.onesLike() : null;
                    try (ChunkedHead fused =
                            new ChunkedHead(group, way.cut, way.budget, way.chunk, head)) {
                        CollectiveCounts start = group.getCounts();
                        ChunkedHead.Result result =
                                fused.evaluate(data.x(manager), w, b, data.labels(manager), loss);
                        Assert.assertEquals(w, before);
                        if (updates) {
                            fused.update(w, b, ofBias, rateOne(), scale, null);
                            ofWeight = before.sub(w).mul(1 / scale);
                            ofBias = way.biased ? ofBias.mul(1 / scale) : null;
                        } else {
                            fused.accumulate(w, b, ofBias, ofWeight, true, scale);
                        }
                        long calls = group.getCounts().minus(start).total();
                        int passes = fused.getState().guarded() ? 2 : 1;
                        Assert.assertEquals(calls, ranks == 1 ? 0 : passes);
                        group.allReduce(result.gradient(), ReduceOp.SUM);
                        if (group.getRank() == 0) {
                            step.loss = result.value().getFloat();
                            put(result.gradient(), step.ofFeatures, null, 1);
                        }
                    }
                    put(ofWeight, step.ofWeight, own, data.features);
                    if (way.biased) {
                        put(ofBias, step.ofBias, own, 1);
                    }
                });
        return step;
    }

    /** Computes a loss without a bias and updates the weight at a rate of 0.1. */
    static ChunkedHead.Result train(
            ChunkedHead fused,
            NDArray x,
            NDArray weight,
            NDArray labels,
            WeightUpdate update,
            int number) {
        ChunkedHead.Result result = fused.evaluate(x, weight, null, labels, PLAIN);
        update.begin(0.1f, number);
        fused.update(weight, null, null, update, 1, null);
        return result;
    }

    static WeightUpdate rateOne() {
        WeightUpdate update = WeightUpdate.sgd(WeightUpdate.Settings.DEFAULT, 0);
        update.begin(1, 1);
        return update;
    }

    static HeadOptions in(Precision precision) {
        return new HeadOptions(1, 0, null, precision);
    }

    /** Returns options of a sampled softmax, or with a margin. */
    static HeadOptions of(float share, Margin margin) {
        return new HeadOptions(share, 9, margin, Precision.FLOAT32);
    }

    static void put(NDArray from, float[] to, List<ShardRange> own, int columns) {
        float[] values = from.toFloatArray();
        List<ShardRange> ranges = own == null ? List.of(new ShardRange(0, to.length)) : own;
        int[] places = HeadReference.places(ranges, columns).toArray();
        for (int i = 0; i < values.length; i++) {
            to[places[i]] = values[i];
        }
    }

    /** Asserts that the loss and its gradients are those of float64, but for some bounds. */
    void assertWithin(HeadReference data, double ofLoss, Bounds bounds) {
        Assert.assertEquals(loss, data.loss, ofLoss, "loss");
        assertClose(ofFeatures, data.ofFeatures, bounds.ofFeatures(), "dX");
        assertClose(ofWeight, data.ofWeight, bounds.ofWeight(), "dW");
        assertClose(ofBias, data.ofBias, bounds.ofBias(), "db");
    }

    /** Asserts that it is but for float32. */
    void assertClose(HeadReference data, double bound) {
        double[] same = new double[Math.max(data.x.length, data.weight.length)];
        Arrays.fill(same, bound);
        assertWithin(data, 1e-6, new Bounds(same, same, same));
    }

    static void assertClose(float[] actual, double[] expected, double bound, String what) {
        double[] bounds = new double[expected.length];
        Arrays.fill(bounds, bound);
        assertClose(actual, expected, bounds, what);
    }

    /** Compares within a part of the largest number. */
    static void assertNear(float[] actual, double[] expected, String what) {
        double largest = Arrays.stream(expected).map(Math::abs).max().orElse(0);
        assertClose(actual, expected, 1e-5 * largest, what);
    }

    static void assertClose(float[] actual, double[] expected, double[] bounds, String what) {
        Assert.assertEquals(actual.length, expected.length, what);
        for (int i = 0; i < actual.length; i++) {
            Assert.assertEquals(actual[i], expected[i], bounds[i], what + " " + i);
        }
    }

    /** Bounds of gradients. */
    record Bounds(double[] ofFeatures, double[] ofWeight, double[] ofBias) {}
}
