package io.djltp.loss;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.head.LossOptions;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Network;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/**
 * Conformance cases 19 and 21: what {@link VocabParallelCrossEntropyLossTest} does not show of
 * label smoothing, of 16 bits, and of logits that are no slice.
 */
public class CrossEntropyConformanceTest {

    private static final float[] FOUR = {0, 1, 2, 3};

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    /**
     * Case 19. NeMo gives a/(K-1) to each of the other K-1 classes. PyTorch's rule, which is ours,
     * gives a'/K to all of them: the same with a' = a K/(K-1).
     */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void nemosSmoothingIsPyTorchsOfAnotherRate(int ranks) {
        LossPass pass = new LossPass(FOUR, new Shape(1, 4), 3);
        LossOptions options = new LossOptions(-100, 0.1f * 4 / 3, 0);
        pass.run(ranks, new VocabParallelCrossEntropyLoss("loss", options));
        Assert.assertEquals(pass.value, 0.6401897, 1e-6);
        double[] expected = {-0.0012747, 0.0538110, 0.2035495, -0.2560857};
        for (int i = 0; i < 4; i++) {
            Assert.assertEquals(pass.gradient[i], expected[i], 1e-6, "class " + i);
        }
    }

    /**
     * Case 21. Of logits that 16 bits can say exactly, the loss is that of 32 bits to the last bit,
     * and the gradient is that one rounded, in the type of the logits: far-off logits, a rank of
     * nothing but these that has the label, and rows that do not count.
     */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void farOffLogitsInSixteenBits(int ranks) {
        DataType type = DataType.FLOAT16; // DJL 0.35 makes no array of bfloat16: toType aborts
        float[] logits = {
            1e4f, -1e4f, 0, 3, -1e4f, 1e4f, 1, 2, 5, 4, 3, 2, -1e4f, -1e4f, -1e4f, -1e4f, 1, 2, 3,
            4, 5, 6, 7, 8, 0.5f, 1.25f, -2, 3, -0.75f, 2, 1, 0
        };
        long[] labels = {3, 6, -100, 5};
        Shape shape = new Shape(4, 8);
        LossPass narrow = new LossPass(logits, shape, labels).withType(type);
        narrow.run(ranks, new VocabParallelCrossEntropyLoss());
        LossPass wide = new LossPass(logits, shape, labels);
        wide.run(ranks, new VocabParallelCrossEntropyLoss());
        Assert.assertTrue(Float.isFinite(narrow.value));
        Assert.assertEquals(narrow.value, wide.value, 0);
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray rounded = manager.create(wide.gradient).toType(type, false);
            ArrayAssert.assertBitEqual(
                    narrow.gradient, ArrayAssert.floats(rounded), "gradient in " + type);
        }
        for (int i = 16; i < 24; i++) {
            Assert.assertEquals(Math.abs(narrow.gradient[i]), 0f, "the row that does not count");
        }
    }

    /** Case 21: the loss would be the right one plus ln p, 1.1333369 for case 18 at p = 2. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void whatIsNoSliceIsRefused(int ranks) {
        LossPass pass = new LossPass(FOUR, new Shape(1, 4), 3).withoutLayout();
        if (ranks == 1) { // the whole is the slice
            Assert.assertEquals(
                    pass.run(1, new VocabParallelCrossEntropyLoss()).value, 0.4401897, 1e-6);
            return;
        }
        Refusals.expect(
                RuntimeException.class,
                () -> pass.run(ranks, new VocabParallelCrossEntropyLoss()),
                "not known to be a slice of the classes");
    }

    /** Case 21: one error before the first step, with the remedy. */
    @Test(timeOut = 60_000)
    public void gatheredLogitsAreRefused() {
        Network net =
                Network.of(
                        cut ->
                                sequence(
                                        linear(5),
                                        ColumnParallelLinear.builder()
                                                .setUnits(7)
                                                .optGatherOutput(true)
                                                .build()),
                        VocabParallelCrossEntropyLoss::new,
                        Network.classification(6, 4, 7));
        for (TrainerKind kind :
                new TrainerKind[] {
                    new TrainerKind(ParallelMode.TENSOR, 2),
                    new TrainerKind(ParallelMode.TENSOR, 3),
                    new TrainerKind(ParallelMode.TENSOR, 4),
                    TrainerKind.mesh(2, 2)
                }) {
            net.assertRefused(
                    kind, "not known to be a slice of the classes", "without optGatherOutput");
        }
    }
}
