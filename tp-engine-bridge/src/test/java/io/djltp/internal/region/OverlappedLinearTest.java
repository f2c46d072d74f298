package io.djltp.internal.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.collective.TestBackend;
import io.djltp.collective.Work;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.LinearProduct;
import io.djltp.testing.NeededArithmetic;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.TestArrays;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicReference;

/** The product that reduces its input's gradient while it computes the weight's. */
@SuppressWarnings("try") // a scope is used by being open
public class OverlappedLinearTest extends RecordedTest {

    private static final Duration TIMEOUT = Duration.ofSeconds(30);

    private static NDArray overlapped(LinearProduct product, NDArray x, NDArray w, NDArray b) {
        return new OverlappedLinear(product, gradient -> Work.DONE, new AtomicReference<>())
                .forward(x, w, b);
    }

    @Test(timeOut = 60_000)
    public void theReductionBeginsBeforeTheWeightsGradient() {
        NDArray weight = TestArrays.leaf(manager.randomNormal(new Shape(3, 4)));
        NDArray input = TestArrays.leaf(manager.randomNormal(new Shape(5, 4)));
        StringBuilder order = new StringBuilder();
        Work work = () -> order.append(hasGradient(weight) ? "await" : "too early");
        NDArray output =
                new OverlappedLinear(
                                new LinearProduct(Precision.FLOAT32),
                                gradient -> {
                                    order.append(hasGradient(weight) ? "late " : "begin ");
                                    return work;
                                },
                                new AtomicReference<>())
                        .forward(input, weight, null);
        Autograd.backward(output, output.onesLike());
        Assert.assertEquals(order.toString(), "begin await");
    }

    private static boolean hasGradient(NDArray leaf) {
        try (NDArray gradient = Autograd.gradient(leaf)) {
            return gradient != null;
        }
    }

    /** Two passes without a step between: gradients add up, as those of autograd do. */
    @Test(timeOut = 60_000)
    public void gradientsEqualThoseOfAutograd() throws Exception {
        RankThreads.runAll(TestBackend.TCP.create(2, TIMEOUT), OverlappedLinearTest::compare);
    }

    private static void compare(Communicator communicator, NDManager manager) {
        int rank = communicator.getRank();
        NDArray[] starts = {
            TestArrays.random(manager, 1, new Shape(2, 3, 4)), // whole numbers
            TestArrays.random(manager, 2 + rank, new Shape(5, 4)),
            TestArrays.random(manager, 5 + rank, new Shape(5))
        };
        NDArray[][] leaves = new NDArray[2][];
        LinearProduct product = new LinearProduct(Precision.FLOAT32);
        try (RegionMappings mappings = new RegionMappings(communicator)) {
            for (int way = 0; way < 2; way++) {
                leaves[way] = leaves(starts);
                NDArray weight = leaves[way][1];
                NDArray bias = leaves[way][2];
                Assert.assertTrue(mappings.canOverlap(leaves[way][0], weight));
                for (int pass = 0; pass < 2; pass++) {
                    try (NDManager step = manager.newSubManager()) {
                        NDArray x = leaves[way][0].mul(step.create(2f)); // no leaf, as in a network
                        x.attach(step);
                        NDArray y =
                                way == 0
                                        ? mappings.columnLinear(product, x, weight, bias, null, 0)
                                        : plain(mappings.copyToRegion(x, true), weight, bias);
                        Autograd.backward(y.square().sum(), step.create(1f));
                    }
                }
            }
            assertSameGradients(leaves, "");
        }
    }

    private static NDArray[] leaves(NDArray... values) {
        return Arrays.stream(values)
                .map(value -> TestArrays.leaf(value.duplicate()))
                .toArray(NDArray[]::new);
    }

    private static void assertSameGradients(NDArray[][] leaves, String what) {
        for (int i = 0; i < leaves[0].length; i++) {
            TestArrays.assertSame(
                    Autograd.gradient(leaves[0][i]), Autograd.gradient(leaves[1][i]), what + i);
        }
    }

    private static NDArray plain(NDArray x, NDArray weight, NDArray bias) {
        return Linear.linear(x, weight, bias).singletonOrThrow();
    }

    /**
     * The same bits as without overlap, also when gradients add up: a product that is added is
     * rounded twice, and one that is computed into the sum once.
     */
    @Test(timeOut = 60_000)
    public void sumsOfGradientsHaveTheBitsOfAutograd() {
        LinearProduct product = new LinearProduct(Precision.FLOAT32);
        for (int seed = 0; seed < 40; seed++) {
            NDArray start = manager.randomNormal(new Shape(13, 17));
            NDArray[][] weights = {leaves(start), leaves(start)};
            for (int pass = 0; pass < 3; pass++) {
                NDArray values = manager.randomNormal(new Shape(11, 17));
                NDArray above = manager.randomNormal(new Shape(11, 13));
                NDArray[] inputs = leaves(values, values);
                Autograd.backward(plain(inputs[0], weights[0][0], null), above);
                Autograd.backward(overlapped(product, inputs[1], weights[1][0], null), above);
            }
            assertSameGradients(weights, seed + " ");
        }
    }

    /** In bfloat16 the bits are those that autograd gives the same three products. */
    @Test(timeOut = 60_000)
    public void bfloat16HasTheBitsOfAutograd() {
        NeededArithmetic.bfloat16();
        LinearProduct product = new LinearProduct(Precision.BFLOAT16);
        NDArray[] values = {
            manager.randomNormal(new Shape(11, 17)),
            manager.randomNormal(new Shape(13, 17)),
            manager.randomNormal(new Shape(13))
        };
        NDArray above = manager.randomNormal(new Shape(11, 13));
        NDArray[][] leaves = {leaves(values), leaves(values)};
        NDArray expected = product.of(leaves[0][0], leaves[0][1], leaves[0][2]);
        NDArray output = overlapped(product, leaves[1][0], leaves[1][1], leaves[1][2]);
        TestArrays.assertSame(output.stopGradient(), expected.stopGradient(), "output");
        Autograd.backward(expected, above);
        Autograd.backward(output, above);
        assertSameGradients(leaves, "");
    }

    @Test(timeOut = 60_000)
    public void nothingOverlapsWithoutAGradientOrWithoutPeers() throws Exception {
        try (Communicator alone = TestBackend.TCP.create(1, TIMEOUT).get(0);
                RegionMappings mappings = new RegionMappings(alone)) {
            NDArray leaf = TestArrays.leaf(manager.ones(new Shape(2, 2)));
            Assert.assertFalse(mappings.canOverlap(leaf, leaf));
        }
        Mapping.run(
                2,
                (mappings, own, communicator) -> {
                    NDArray leaf = TestArrays.leaf(own.ones(new Shape(2, 2)));
                    NDArray frozen = own.ones(new Shape(2, 2));
                    boolean asynchronous = communicator.isAsynchronous();
                    Assert.assertEquals(mappings.canOverlap(leaf, leaf), asynchronous);
                    Assert.assertFalse(mappings.canOverlap(frozen, leaf));
                    Assert.assertFalse(mappings.canOverlap(leaf, frozen));
                    try (Autograd.GradMode off = Autograd.gradMode(false)) {
                        Assert.assertFalse(mappings.canOverlap(leaf, leaf));
                    }
                });
    }
}
