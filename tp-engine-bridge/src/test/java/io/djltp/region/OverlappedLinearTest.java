package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.collective.TestBackend;
import io.djltp.collective.Work;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.LinearProduct;
import io.djltp.testing.NeededArithmetic;
import io.djltp.testing.TestArrays;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;

/** The product that reduces its input's gradient while it computes the weight's. */
@SuppressWarnings("try") // a scope is used by being open
public class OverlappedLinearTest {

    private static final Duration TIMEOUT = Duration.ofSeconds(30);

    @Test(timeOut = 60_000)
    public void theReductionBeginsBeforeTheWeightsGradient() {
        LibTorch.load();
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
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
    }

    private static boolean hasGradient(NDArray leaf) {
        try (NDArray gradient = Autograd.gradient(leaf)) {
            return gradient != null;
        }
    }

    /** Two passes without a step between: gradients add up, as those of autograd do. */
    @Test(timeOut = 60_000)
    public void gradientsEqualThoseOfAutograd() throws Exception {
        List<Communicator> group = TestBackend.TCP.create(2, TIMEOUT);
        Throwable[] outcomes = RankThreads.outcomes(group, OverlappedLinearTest::compare);
        group.forEach(Communicator::close);
        for (Throwable outcome : outcomes) {
            if (outcome != null) {
                throw new AssertionError(outcome);
            }
        }
    }

    private static void compare(Communicator communicator, NDManager manager) {
        int rank = communicator.getRank();
        NDArray values = TestArrays.random(manager, 1, new Shape(2, 3, 4)); // whole numbers
        NDArray start = TestArrays.random(manager, 2 + rank, new Shape(5, 4));
        NDArray offsets = TestArrays.random(manager, 5 + rank, new Shape(5));
        NDArray[][] gradients = new NDArray[2][];
        try (RegionMappings mappings = new RegionMappings(communicator)) {
            for (int way = 0; way < 2; way++) {
                NDArray input = TestArrays.leaf(values.duplicate());
                NDArray weight = TestArrays.leaf(start.duplicate());
                NDArray bias = TestArrays.leaf(offsets.duplicate());
                Assert.assertTrue(mappings.canOverlap(input, weight));
                for (int pass = 0; pass < 2; pass++) {
                    try (NDManager step = manager.newSubManager()) {
                        NDArray x = input.mul(step.create(2f)); // no leaf, as in a network
                        x.attach(step);
                        NDArray y =
                                way == 0
                                        ? mappings.columnLinear(
                                                new LinearProduct(Precision.FLOAT32),
                                                x,
                                                weight,
                                                bias,
                                                null,
                                                0)
                                        : plain(mappings, x, weight, bias);
                        NDArray loss = y.square().sum();
                        Autograd.backward(loss, step.create(1f));
                    }
                }
                gradients[way] =
                        new NDArray[] {
                            Autograd.gradient(input),
                            Autograd.gradient(weight),
                            Autograd.gradient(bias)
                        };
            }
        }
        String[] names = {"input", "weight", "bias"};
        for (int i = 0; i < 3; i++) {
            TestArrays.assertSame(gradients[0][i], gradients[1][i], names[i]);
        }
    }

    /**
     * The same bits as without overlap, also when gradients add up: a product that is added is
     * rounded twice, and one that is computed into the sum once.
     */
    @Test(timeOut = 60_000)
    public void sumsOfGradientsHaveTheBitsOfAutograd() {
        LibTorch.load();
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            for (int seed = 0; seed < 40; seed++) {
                NDArray start = manager.randomNormal(new Shape(13, 17));
                NDArray[] weights = {
                    TestArrays.leaf(start.duplicate()), TestArrays.leaf(start.duplicate())
                };
                for (int pass = 0; pass < 3; pass++) {
                    NDArray values = manager.randomNormal(new Shape(11, 17));
                    NDArray above = manager.randomNormal(new Shape(11, 13));
                    for (int way = 0; way < 2; way++) {
                        NDArray input = TestArrays.leaf(values.duplicate());
                        NDArray output =
                                way == 0
                                        ? ai.djl.nn.core.Linear.linear(input, weights[0])
                                                .singletonOrThrow()
                                        : new OverlappedLinear(
                                                        new LinearProduct(Precision.FLOAT32),
                                                        gradient -> Work.DONE,
                                                        new AtomicReference<>())
                                                .forward(input, weights[1], null);
                        Autograd.backward(output, above);
                    }
                }
                TestArrays.assertSame(
                        Autograd.gradient(weights[1]), Autograd.gradient(weights[0]), "" + seed);
            }
        }
    }

    /** In bfloat16 the bits are those that autograd gives the same three products. */
    @Test(timeOut = 60_000)
    public void bfloat16HasTheBitsOfAutograd() {
        NeededArithmetic.bfloat16();
        LinearProduct product = new LinearProduct(Precision.BFLOAT16);
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray[][] found = new NDArray[2][];
            NDArray start = manager.randomNormal(new Shape(13, 17));
            NDArray values = manager.randomNormal(new Shape(11, 17));
            NDArray above = manager.randomNormal(new Shape(11, 13));
            NDArray offsets = manager.randomNormal(new Shape(13));
            for (int way = 0; way < 2; way++) {
                NDArray weight = TestArrays.leaf(start.duplicate());
                NDArray input = TestArrays.leaf(values.duplicate());
                NDArray bias = TestArrays.leaf(offsets.duplicate());
                OverlappedLinear overlapped =
                        new OverlappedLinear(
                                product, gradient -> Work.DONE, new AtomicReference<>());
                NDArray output =
                        way == 0
                                ? product.of(input, weight, bias)
                                : overlapped.forward(input, weight, bias);
                Autograd.backward(output, above);
                found[way] =
                        new NDArray[] {
                            output.stopGradient(),
                            Autograd.gradient(input),
                            Autograd.gradient(weight),
                            Autograd.gradient(bias)
                        };
            }
            for (int i = 0; i < 4; i++) {
                TestArrays.assertSame(found[1][i], found[0][i], "" + i);
            }
        }
    }

    private static NDArray plain(
            RegionMappings mappings, NDArray input, NDArray weight, NDArray bias) {
        NDArray x = mappings.copyToRegion(input, true);
        return ai.djl.nn.core.Linear.linear(x, weight, bias).singletonOrThrow();
    }

    @Test(timeOut = 60_000)
    public void nothingOverlapsWithoutAGradientOrWithoutPeers() throws Exception {
        List<Communicator> group = TestBackend.TCP.create(1, TIMEOUT);
        LibTorch.load();
        try (NDManager manager = NDManager.newBaseManager();
                Communicator alone = group.get(0);
                RegionMappings mappings = new RegionMappings(alone)) {
            NDArray leaf = TestArrays.leaf(manager.ones(new Shape(2, 2)));
            Assert.assertFalse(mappings.canOverlap(leaf, leaf));
        }
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        NDArray leaf = TestArrays.leaf(manager.ones(new Shape(2, 2)));
                        NDArray frozen = manager.ones(new Shape(2, 2));
                        boolean asynchronous = communicator.isAsynchronous();
                        Assert.assertEquals(mappings.canOverlap(leaf, leaf), asynchronous);
                        Assert.assertFalse(mappings.canOverlap(frozen, leaf));
                        Assert.assertFalse(mappings.canOverlap(leaf, frozen));
                        try (Autograd.GradMode off = Autograd.gradMode(false)) {
                            Assert.assertFalse(mappings.canOverlap(leaf, leaf));
                        }
                    }
                });
    }
}
