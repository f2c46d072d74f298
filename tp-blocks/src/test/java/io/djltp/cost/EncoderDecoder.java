package io.djltp.cost;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.PassForecast;

import java.util.List;

/** A block of a user's with two inputs, which brings its forecast. */
final class EncoderDecoder extends AbstractBlock implements ForecastBlock {

    private final Block embedding;
    private final Block encoder;
    private final Block decoder;

    EncoderDecoder(Block embedding, Block encoder, Block decoder) {
        super((byte) 1);
        this.embedding = addChildBlock("embedding", embedding);
        this.encoder = addChildBlock("encoder", encoder);
        this.decoder = addChildBlock("decoder", decoder);
    }

    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> p) {
        NDList x = embedding.forward(store, new NDList(inputs.get(0)), training);
        NDList memory = embedding.forward(store, new NDList(inputs.get(1)), training);
        x.addAll(encoder.forward(store, memory, training));
        return decoder.forward(store, x, training);
    }

    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        throw new IllegalArgumentException("there are two inputs");
    }

    /** The embedding has other shapes at its two uses: those of what it is given. */
    @Override
    public ForecastArray forecast(PassForecast pass, List<ForecastArray> inputs) {
        ForecastBlock table = (ForecastBlock) embedding;
        ForecastArray x = table.forecast(pass, inputs.get(0));
        ForecastArray memory = table.forecast(pass, inputs.get(1));
        return pass.visit(decoder, x, pass.visit(encoder, memory));
    }

    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        embedding.initialize(manager, dataType, inputShapes[0]);
        Shape x = embedding.getOutputShapes(new Shape[] {inputShapes[0]})[0];
        Shape memory = embedding.getOutputShapes(new Shape[] {inputShapes[1]})[0];
        encoder.initialize(manager, dataType, memory);
        decoder.initialize(manager, dataType, x, memory);
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return embedding.getOutputShapes(new Shape[] {inputShapes[0]});
    }
}
