package io.djltp.forecast;

import ai.djl.nn.Block;

import java.util.List;

/** Goes into blocks that are no {@link ForecastBlock}. */
@FunctionalInterface
public interface BlockWalker {

    /**
     * Goes through a block and its children.
     *
     * @param pass the pass
     * @param block the block
     * @param inputs its inputs
     * @return its first output
     */
    ForecastArray walk(PassForecast pass, Block block, List<ForecastArray> inputs);
}
