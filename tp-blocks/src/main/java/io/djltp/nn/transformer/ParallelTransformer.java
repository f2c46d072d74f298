package io.djltp.nn.transformer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.PassForecast;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;

/**
 * Layers of a transformer, one after another, and optionally a norm. Each layer gets what the one
 * before has computed, and the other inputs, such as masks, as they are.
 *
 * <ul>
 *   <li>inputs: those of a layer; x [B, T, D]
 *   <li>output: [B, T, D]
 * </ul>
 */
public class ParallelTransformer extends AbstractBlock implements ForecastBlock {

    private static final byte VERSION = 1;

    private final List<Block> layers;
    private final @Nullable Block norm;

    /**
     * Creates a stack.
     *
     * @param layers the layers, such as {@link ParallelTransformerEncoderLayer}s
     * @param norm the norm after the last layer, as pre-norm layers need it, or {@code null}
     */
    @SuppressWarnings("this-escape") // as in all of DJL's blocks: the children are complete
    public ParallelTransformer(List<? extends Block> layers, @Nullable Block norm) {
        super(VERSION);
        Errors.check(!layers.isEmpty(), "A transformer needs a layer or more");
        this.layers = new ArrayList<>(layers);
        this.norm = norm;
        this.layers.forEach(layer -> addChildBlock("layer", layer));
        if (norm != null) {
            addChildBlock("norm", norm);
        }
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        NDArray x = inputs.head();
        for (Block layer : layers) {
            NDList all = new NDList(x);
            all.addAll(inputs.subNDList(1));
            x = layer.forward(store, all, training).singletonOrThrow();
        }
        return norm == null ? new NDList(x) : norm.forward(store, new NDList(x), training);
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        return forecast(pass, List.of(input));
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, List<ForecastArray> inputs) {
        ForecastArray[] all = inputs.toArray(new ForecastArray[0]);
        for (Block layer : layers) {
            all[0] = pass.visit(layer, all);
        }
        return norm == null ? all[0] : pass.visit(norm, all[0]);
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        layers.forEach(layer -> layer.initialize(manager, dataType, inputShapes));
        if (norm != null) {
            norm.initialize(manager, dataType, inputShapes[0]);
        }
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {inputShapes[0]};
    }
}
