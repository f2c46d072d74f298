package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Collective;
import io.djltp.head.TopClasses;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Ranks;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** The best classes of logits that are cut by class are those of the whole logits. */
public class VocabParallelTopKTest {

    private static final int ROWS = 6;
    private static final int CLASSES = 11; // uneven over 2, 3 and 4 ranks

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    /** At every k, also above what a rank has; by one all-gather. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void isDjlsTopK(int ranks) {
        Ranks.run(
                ParallelMode.TENSOR,
                ranks,
                context -> {
                    try (NDManager manager = NDManager.newBaseManager()) {
                        NDArray whole = TrainingRun.random(manager, 3, 2, 3, CLASSES);
                        NDArray slice = LossPass.slice(context, whole);
                        NDArray rows = whole.reshape(ROWS, CLASSES);
                        for (int k = 1; k <= CLASSES; k++) {
                            long gathers = context.getCounts().get(Collective.ALL_GATHER);
                            TopClasses best =
                                    new VocabParallelTopK(k, true).evaluate(new NDList(slice));
                            Assert.assertEquals(
                                    context.getCounts().get(Collective.ALL_GATHER) - gathers,
                                    ranks == 1 ? 0 : 1);
                            Assert.assertEquals(best.logits().getShape(), new Shape(2, 3, k));
                            NDList djl = rows.topK(k, 1, true, true);
                            Assert.assertEquals(
                                    best.logits().toFloatArray(), djl.get(0).toFloatArray());
                            Assert.assertEquals(
                                    best.classes().toLongArray(), djl.get(1).toLongArray());
                            Assert.assertEquals(
                                    best.probabilities().toFloatArray(),
                                    rows.softmax(1).topK(k, 1, true, true).get(0).toFloatArray(),
                                    1e-6f);
                        }
                    }
                    return null;
                });
    }

    @Test
    public void wholeLogitsAreTakenToo() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray logits = manager.create(new float[] {1, 3, 2, 3}, new Shape(1, 4));
            TopClasses best = new VocabParallelTopK(3).evaluate(new NDList(logits));
            Assert.assertEquals(best.classes().toLongArray(), new long[] {1, 3, 2});
            Assert.assertEquals(best.logits().toFloatArray(), new float[] {3, 3, 2});
            Assert.assertEquals(logits.toFloatArray(), new float[] {1, 3, 2, 3});
        }
    }

    /** Of whichever rank the class is, all ranks say so. */
    @Test(timeOut = 60_000)
    public void logitsWithoutAnOrderAreRefused() {
        Ranks.run(
                ParallelMode.TENSOR,
                2,
                context -> {
                    try (NDManager manager = NDManager.newBaseManager()) {
                        NDArray whole = TrainingRun.random(manager, 3, 4, CLASSES);
                        whole.set(new NDIndex(2, CLASSES - 1), Float.NaN);
                        NDArray slice = LossPass.slice(context, whole);
                        Refusals.expect(
                                ArithmeticException.class,
                                () -> new VocabParallelTopK(2).evaluate(new NDList(slice)),
                                "Row 2 of 4 has no best classes");
                    }
                    return null;
                });
    }

    @Test
    public void noClassAtAllIsRefused() {
        Refusals.throwsArgument(
                () -> new VocabParallelTopK(0), "The k of a top-k must be 1 or more: 0");
    }
}
