package io.djltp.nn.transformer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.ForecastBlock;
import io.djltp.forecast.PassForecast;
import io.djltp.nn.Recompute;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What layers of transformers have in common: parts one after another, each with its residual. */
abstract class AbstractTransformerLayer extends AbstractBlock implements ForecastBlock {

    private static final byte VERSION = 1;

    private final Map<String, Residual> parts = new LinkedHashMap<>();

    private final boolean recompute;

    AbstractTransformerLayer(boolean recompute) {
        super(VERSION);
        this.recompute = recompute;
    }

    /** Computes the layer. */
    abstract NDArray compute(ParameterStore store, NDList inputs, boolean training);

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        if (!recompute) {
            return new NDList(compute(parameterStore, inputs, training));
        }
        return new NDList(
                Recompute.part(
                        parameterStore,
                        inputs,
                        training,
                        "A " + getClass().getSimpleName() + " with optRecompute(true)",
                        arrays -> compute(parameterStore, arrays, training)));
    }

    /** Adds a part of the layer. */
    final Residual add(String name, Residual part) {
        addChildBlock(name, part.part());
        addChildBlock(name + "Norm", part.norm());
        if (part.dropout() != null) {
            addChildBlock(name + "Dropout", part.dropout());
        }
        parts.put(name, part);
        return part;
    }

    /** Returns the shapes of the inputs of a part, from those of the layer. */
    abstract Shape[] inputsOf(String part, Shape... inputShapes);

    /** Returns the inputs of a part, but the first, from those of the layer. */
    abstract List<ForecastArray> othersOf(String part, List<ForecastArray> inputs);

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        return forecast(pass, List.of(input));
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, List<ForecastArray> inputs) {
        return recompute
                ? pass.repeated(() -> forecastParts(pass, inputs))
                : forecastParts(pass, inputs);
    }

    private ForecastArray forecastParts(PassForecast pass, List<ForecastArray> inputs) {
        ForecastArray y = inputs.get(0);
        for (Map.Entry<String, Residual> part : parts.entrySet()) {
            y = part.getValue().forecast(pass, y, othersOf(part.getKey(), inputs));
        }
        return y;
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        parts.forEach(
                (name, part) -> part.initialize(manager, dataType, inputsOf(name, inputShapes)));
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {inputShapes[0]};
    }
}
