package io.djltp.torch;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.Set;
import java.util.function.UnaryOperator;

/** The graph tells over which axes an operation of DJL's was called, also where no shape does. */
public class OperationAxesTest {

    private static final Shape SHAPE = new Shape(2, 3, 4);

    private static Object[] row(String name, UnaryOperator<NDArray> operation, int... axes) {
        return new Object[] {name, operation, axes};
    }

    private static NDArray zeros(NDArray x) {
        return x.getManager().zeros(SHAPE, DataType.INT64);
    }

    private static NDArray layerNorm(NDArray x, boolean bias, Shape shape) {
        NDArray weight = x.getManager().ones(shape);
        return x.getNDArrayInternal()
                .layerNorm(x, shape, weight, bias ? weight.zerosLike() : weight, 1e-5f)
                .head();
    }

    @DataProvider
    public Object[][] operations() {
        return new Object[][] {
            row("softmax", x -> x.softmax(1), 1),
            row("softmax from the end", x -> x.softmax(-1), 2),
            row("logSoftmax", x -> x.logSoftmax(-2), 1),
            row("cumSum", x -> x.cumSum(1), 1),
            row("cumProd", x -> x.cumProd(2), 2),
            row("flip", x -> x.flip(-1, 0), 2, 0),
            row("sort", x -> x.sort(1), 1),
            row("topK", x -> x.topK(2, 1).get(0), 1),
            row("gather", x -> x.gather(zeros(x), -1), 2),
            row("scatter", x -> x.mul(2).scatter(zeros(x), x, 1), 1),
            row("max", x -> x.max(new int[] {1}, true), 1),
            row("min", x -> x.min(new int[] {2}), 2),
            row("median", x -> x.median(new int[] {1}), 1),
            row("prod", x -> x.prod(new int[] {1}, true), 1),
            row("sum", x -> x.sum(new int[] {0, -1}, true), 0, 2),
            row("mean", x -> x.mean(new int[] {1}), 1),
            row("norm", x -> x.norm(new int[] {1, 2}, true), 1, 2),
            row("concat", x -> x.concat(x, -1), 2),
            row("stack", x -> NDArrays.stack(new NDList(x, x), -1), 3),
            row("split", x -> x.split(2, 2).get(1), 2),
            row("split at", x -> x.split(new long[] {1}, 1).get(1), 1),
            row("part", x -> x.get("..., 1:3"), 2),
            row("one", x -> x.get(":, :, 1"), 2),
            row("expandDims", x -> x.expandDims(3), 3),
            row("squeeze", x -> x.get(":, 0:1").squeeze(1), 1),
            row("swapAxes", x -> x.swapAxes(-1, 0), 2, 0),
            row("transpose", x -> x.transpose(2, 0, 1), 2, 0, 1),
            row("layer norm", x -> layerNorm(x, true, new Shape(4)), 2),
            row("layer norm of two axes", x -> layerNorm(x, false, new Shape(3, 4)), 1, 2),
        };
    }

    @Test(dataProvider = "operations", timeOut = 60_000)
    @SuppressWarnings("try") // a scope is used by being open
    public void axesOfAnOperation(String name, UnaryOperator<NDArray> operation, int[] axes) {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray y = operation.apply(leaf(manager));
            AutogradGraph.Node node = AutogradGraph.of(List.of(y)).get(AutogradGraph.nodeOf(y));
            int dimensions = "squeeze".equals(name) ? 3 : SHAPE.dimension();
            assertEquals(OperationAxes.of(node, dimensions), axes, node.name());
        }
    }

    private static NDArray leaf(NDManager manager) {
        NDArray leaf = manager.randomUniform(0.1f, 0.9f, SHAPE);
        leaf.setRequiresGradient(true);
        return leaf.mul(1f);
    }

    /** Inside of a part another axis is another structure; outside it need not be known. */
    @Test(timeOut = 60_000)
    @SuppressWarnings("try") // a scope is used by being open
    public void structureOfAPass() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            long tanh = structure(manager, NDArray::tanh, true);
            assertEquals(structure(manager, NDArray::tanh, true), tanh);
            assertEquals(structure(manager, x -> x.softmax(1), true) == tanh, false);
            for (boolean part : new boolean[] {true, false}) {
                assertEquals(
                        structure(manager, x -> x.softmax(1), part)
                                == structure(manager, x -> x.softmax(2), part),
                        !part);
            }
        }
    }

    private static long structure(
            NDManager manager, UnaryOperator<NDArray> operation, boolean part) {
        NDArray x = leaf(manager);
        Set<Long> parts = part ? Set.of(AutogradGraph.nodeOf(x)) : Set.of();
        return GraphStructure.of(operation.apply(x).sum(), parts, Set.of());
    }
}
