package io.djltp.forecast;

import ai.djl.nn.Block;

/** Goes into blocks that are no {@link ForecastBlock}. */
@FunctionalInterface
public interface BlockWalker {

    /**
     * Goes through a block and its children.
     *
     * @param pass the pass
     * @param block the block
     * @param input its first input
     * @return its first output
     */
    ForecastArray walk(PassForecast pass, Block block, ForecastArray input);
}
