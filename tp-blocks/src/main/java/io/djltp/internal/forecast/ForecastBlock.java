package io.djltp.internal.forecast;

import ai.djl.nn.Block;

import java.util.List;

/**
 * A block that communicates, and can say what, from shapes alone. What it says is what a step of a
 * {@link io.djltp.internal.rank.CommunicationCounter counted} training issues.
 *
 * <p>{@link #forecast} mirrors the forward pass of the block: where that asks its context for
 * mappings and computes with them, this asks {@link PassForecast#getMappings}, whose methods have
 * the same names and note the operations of both directions.
 */
public interface ForecastBlock extends Block {

    /**
     * Notes what the block will communicate, and how its parameters will be used.
     *
     * @param pass the pass of one rank
     * @param input the first input
     * @return the first output
     */
    ForecastArray forecast(PassForecast pass, ForecastArray input);

    /**
     * Notes what a block with several inputs will communicate. One that reads the first only, or
     * whose others are not computed by ranks, such as masks, need not have this method.
     *
     * @param pass the pass of one rank
     * @param inputs the inputs, one or more
     * @return the first output
     */
    default ForecastArray forecast(PassForecast pass, List<ForecastArray> inputs) {
        return forecast(pass, inputs.get(0));
    }
}
