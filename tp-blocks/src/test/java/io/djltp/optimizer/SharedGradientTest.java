package io.djltp.optimizer;

import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.training.ParameterStore;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.PairList;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

/**
 * Parameters that are added have one gradient between them, which libtorch may leave in the same
 * memory for both: it is summed over the ranks, and rescaled, for each of them once.
 */
public class SharedGradientTest {

    /** A layer with two parameters that are added, one of them seen in another shape. */
    private static final class Sum extends AbstractBlock {

        private final Block linear;
        private final Parameter first;
        private final Parameter second;

        Sum() {
            super((byte) 1);
            linear = addChildBlock("linear", Linear.builder().setUnits(Training.UNITS).build());
            first = addParameter(parameter("first", new Shape(Training.UNITS, 1)));
            second = addParameter(parameter("second", new Shape(1, Training.UNITS)));
        }

        private static Parameter parameter(String name, Shape shape) {
            return Parameter.builder()
                    .setName(name)
                    .setType(Parameter.Type.WEIGHT)
                    .optShape(shape)
                    .build();
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray output = linear.forward(store, inputs, training).singletonOrThrow();
            NDArray one = store.getValue(first, output.getDevice(), training);
            NDArray other = store.getValue(second, output.getDevice(), training);
            NDArray sum = one.reshape(1, Training.UNITS).add(other);
            sum.attach(output.getManager());
            return new NDList(output.add(sum));
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return linear.getOutputShapes(inputShapes);
        }

        @Override
        public void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            linear.initialize(manager, type, shapes);
        }
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel(1, 2);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void isUsedOnceForEach(TrainerKind kind) {
        if (kind.mode() == ParallelMode.MIXED && kind.ranks() > 1) {
            return; // no head
        }
        Training.assertSame(train(kind), train(PLAIN), 5e-6);
    }

    private static List<float[]> train(TrainerKind kind) {
        var builder = Optimizer.sgd();
        builder.setRescaleGrad(0.5f);
        Optimizer optimizer = builder.setLearningRateTracker(Tracker.fixed(0.1f)).build();
        return Training.run(kind, new Sum(), optimizer, 3, (trainer, step) -> {});
    }
}
