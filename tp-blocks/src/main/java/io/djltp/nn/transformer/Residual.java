package io.djltp.nn.transformer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;

import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.PassForecast;
import io.djltp.nn.ParallelDropout;

import java.util.ArrayList;
import java.util.List;

/**
 * A part of a layer with a connection around it: {@code x + drop(f(norm(x)))} where the norm comes
 * first, {@code norm(x + drop(f(x)))} where it comes last. Norm, sum and dropout are computed alike
 * on all ranks, of whole features.
 *
 * @param part the part f, whose output is the same on all ranks
 * @param norm the norm
 * @param dropout the dropout of the part's output, or {@code null}
 * @param preNorm whether the norm comes first
 */
record Residual(Block part, Block norm, ParallelDropout dropout, boolean preNorm) {

    /**
     * Initializes what the connection is around.
     *
     * @param manager the manager of the parameters
     * @param type their type
     * @param inputs the shapes of the part's inputs, first x
     * @throws IllegalArgumentException if the part's output cannot be added to x
     */
    void initialize(NDManager manager, DataType type, Shape... inputs) {
        part.initialize(manager, type, inputs);
        long features = featuresOf(inputs[0]);
        long units = featuresOf(part.getOutputShapes(inputs)[0]);
        if (units != features) {
            throw new IllegalArgumentException(
                    "The output of "
                            + part.getClass().getSimpleName()
                            + " is added to its input: it has "
                            + units
                            + " features, and the input of the layer, "
                            + inputs[0]
                            + ", has "
                            + features
                            + ". Build the layer with the width "
                            + features
                            + ", or let a Linear of "
                            + units
                            + " units come before it");
        }
        norm.initialize(manager, type, inputs[0]);
        if (dropout != null) {
            dropout.initialize(manager, type, inputs[0]);
        }
    }

    /**
     * Computes the part and what is around it.
     *
     * @param store the parameters
     * @param x the input, [B, T, D]
     * @param training whether it is trained
     * @param others the other inputs of the part
     * @return the output, [B, T, D]
     */
    NDArray forward(ParameterStore store, NDArray x, boolean training, NDList others) {
        NDList inputs = new NDList(preNorm ? call(norm, store, new NDList(x), training) : x);
        inputs.addAll(others);
        NDArray y = call(part, store, inputs, training);
        if (dropout != null) {
            y = call(dropout, store, new NDList(y), training);
        }
        NDArray sum = x.add(y);
        return preNorm ? sum : call(norm, store, new NDList(sum), training);
    }

    /**
     * Notes what that will communicate.
     *
     * @param pass the pass of one rank
     * @param x the input
     * @param others the other inputs of the part
     * @return the output
     */
    ForecastArray forecast(PassForecast pass, ForecastArray x, List<ForecastArray> others) {
        List<ForecastArray> inputs = new ArrayList<>();
        inputs.add(preNorm ? pass.visit(norm, x) : x);
        inputs.addAll(others);
        ForecastArray y = pass.visit(part, inputs.toArray(new ForecastArray[0]));
        ForecastArray sum = x.plus(y.withShape(x.shape()));
        return preNorm ? sum : pass.visit(norm, sum);
    }

    private static long featuresOf(Shape shape) {
        return shape.get(shape.dimension() - 1);
    }

    private static NDArray call(
            Block block, ParameterStore store, NDList inputs, boolean training) {
        return block.forward(store, inputs, training).singletonOrThrow();
    }
}
