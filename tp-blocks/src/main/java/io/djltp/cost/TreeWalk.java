package io.djltp.cost;

import ai.djl.nn.Block;
import ai.djl.nn.ParallelBlock;
import ai.djl.nn.Parameter;

import io.djltp.forecast.BlockWalker;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.PassForecast;

/**
 * The way of a forecast through blocks that say nothing of ranks: the children of a {@link
 * ParallelBlock} have the same input; those of any other block, such as one of the user's, are
 * taken to follow one another in the order in which it has added them, each used once.
 */
final class TreeWalk implements BlockWalker {

    /** {@inheritDoc} */
    @Override
    public ForecastArray walk(PassForecast pass, Block block, ForecastArray input) {
        pass.use(block, input);
        ForecastArray output = input.with(isTrained(block));
        boolean parallel = block instanceof ParallelBlock;
        boolean trained = output.differentiated();
        for (Block child : block.getChildren().values()) {
            ForecastArray next = pass.visit(child, parallel ? input : output);
            trained |= next.differentiated();
            output = next.with(trained);
        }
        return output;
    }

    private static boolean isTrained(Block block) {
        return block.getDirectParameters().values().stream().anyMatch(Parameter::requiresGradient);
    }
}
