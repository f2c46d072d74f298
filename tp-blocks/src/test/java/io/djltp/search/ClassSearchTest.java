package io.djltp.search;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.core.Linear;
import ai.djl.training.ParameterStore;

import io.djltp.head.TopClasses;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;

/** A search finds what the layer, a softmax and a top-k would. */
public class ClassSearchTest extends RecordedTest {

    private static final int CLASSES = 20_011;
    private static final int FEATURES = 7;

    /** Batches of all sizes one after another: each uses the memory of the one before. */
    @Test(timeOut = 60_000)
    public void isSoftmaxAndTopK() {
        for (Linear layer :
                List.of(
                        Linear.builder().setUnits(CLASSES).build(),
                        ColumnParallelLinear.builder().setUnits(CLASSES).build(),
                        Linear.builder().setUnits(CLASSES).optBias(false).build())) {
            layer.initialize(manager, DataType.FLOAT32, new Shape(1, FEATURES));
            try (ClassSearch search = ClassSearch.of(layer)) {
                Assert.assertEquals(search.getClasses(), CLASSES);
                for (int rows : new int[] {1, 40, 300, 2, 1}) {
                    NDArray x = TrainingRun.random(manager, rows, rows, FEATURES);
                    assertSame(search, layer, x);
                }
            }
        }
    }

    private static void assertSame(ClassSearch search, Linear layer, NDArray x) {
        ParameterStore store = new ParameterStore(x.getManager(), false);
        NDArray logits = layer.forward(store, new NDList(x), false).singletonOrThrow();
        NDArray probabilities = logits.softmax(1).topK(5, 1, true, true).get(0);
        NDList djl = logits.topK(5, 1, true, true);
        try (TopClasses best = search.classify(x, 5);
                TopClasses bare = search.topK(x, 5)) {
            Assert.assertEquals(best.classes().toLongArray(), djl.get(1).toLongArray());
            Assert.assertEquals(best.logits().toFloatArray(), djl.get(0).toFloatArray(), 1e-6f);
            float[] expected = probabilities.toFloatArray();
            float[] seen = best.probabilities().toFloatArray();
            for (int i = 0; i < seen.length; i++) {
                Assert.assertEquals(seen[i], expected[i], 1e-5 * expected[i]);
            }
            Assert.assertEquals(bare.classes(), best.classes());
            Assert.assertEquals(bare.logits(), best.logits());
        }
    }

    @Test
    public void whatDoesNotFitIsRefused() {
        try (ClassSearch search = new ClassSearch(manager.zeros(new Shape(4, 3)), null, null)) {
            refused(
                    () -> search.topK(manager.zeros(new Shape(1, 2)), 1),
                    "The features (1, 2) do not fit the weight (4, 3): their last axis must have"
                            + " length 3");
            refused(
                    () -> search.topK(manager.zeros(new Shape(1, 3)), 5),
                    "The 5 best of 4 classes were asked for: 1 to 4 can be had");
            refused(
                    () -> ClassSearch.of(Activation.reluBlock()),
                    "A search needs a Linear layer, not a LambdaBlock");
        }
    }

    /** NaN is above every number, so that it would be the best class. */
    @Test
    public void featuresWithoutAnOrderAreRefused() {
        try (ClassSearch search =
                new ClassSearch(manager.arange(0f, 12f, 1f).reshape(4, 3), null, null)) {
            NDArray x = manager.ones(new Shape(3, 3));
            x.set(new NDIndex(1, 2), Float.NaN);
            for (boolean withProbabilities : new boolean[] {false, true}) {
                ArithmeticException e =
                        Assert.expectThrows(
                                ArithmeticException.class,
                                () -> {
                                    if (withProbabilities) {
                                        search.classify(x, 2);
                                    } else {
                                        search.topK(x, 2);
                                    }
                                });
                Assert.assertEquals(
                        e.getMessage(),
                        "Row 1 of 3 has no best classes, because a logit is NaN: its features, the"
                                + " weight or the bias hold NaN or infinite values");
            }
        }
    }

    @Test
    public void aClosedSearchIsRefused() {
        ClassSearch search = new ClassSearch(manager.ones(new Shape(4, 3)), null, null);
        NDArray x = manager.ones(new Shape(2, 3));
        search.classify(x, 2).close();
        search.close();
        search.close(); // which does nothing more
        IllegalStateException e =
                Assert.expectThrows(IllegalStateException.class, () -> search.classify(x, 2));
        Assert.assertEquals(
                e.getMessage(),
                "The search over 4 classes is closed: make another one, ClassSearch.of(layer)");
        Assert.assertThrows(IllegalStateException.class, () -> search.topK(x, 2));
    }

    /** A model closes the arrays of its layers. */
    @Test
    public void aWeightThatIsClosedIsRefused() {
        NDManager ofModel = manager.newSubManager();
        Linear layer = Linear.builder().setUnits(4).build();
        layer.initialize(ofModel, DataType.FLOAT32, new Shape(1, 3));
        try (ClassSearch search = ClassSearch.of(layer)) {
            ofModel.close();
            Assert.assertEquals(search.getClasses(), 4);
            Refusals.throwsState(
                    () -> search.topK(manager.ones(new Shape(2, 3)), 1),
                    "over 4 classes has lost its weight .. keep the model open");
        }
        Refusals.throwsState(
                () -> ClassSearch.of(layer), "weight (4, 3), which was closed with its model");
    }

    private static void refused(Assert.ThrowingRunnable call, String message) {
        IllegalArgumentException e = Assert.expectThrows(IllegalArgumentException.class, call);
        Assert.assertEquals(e.getMessage(), message);
    }
}
