package io.djltp.cost;

import ai.djl.nn.Block;
import ai.djl.nn.ParallelBlock;
import ai.djl.nn.Parameter;

import io.djltp.forecast.BlockWalker;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.PassForecast;
import io.djltp.nn.ParallelDropout;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.PositionEmbedding;
import io.djltp.nn.transformer.SinusoidalPositions;

import java.util.List;
import java.util.Set;

/**
 * The way of a forecast through blocks that say nothing of ranks: the children of a {@link
 * ParallelBlock} have the same input; those of any other block, such as one of the user's, are
 * taken to follow one another in the order in which it has added them, each used once.
 */
final class TreeWalk implements BlockWalker {

    /** Blocks of the library that compute on each rank, and send nothing. */
    private static final Set<Class<?>> SILENT =
            Set.of(
                    ParallelDropout.class,
                    RmsNorm.class,
                    PositionEmbedding.class,
                    SinusoidalPositions.class);

    /** {@inheritDoc} */
    @Override
    public ForecastArray walk(PassForecast pass, Block block, List<ForecastArray> inputs) {
        checkSilent(block);
        pass.use(block, inputs.get(0));
        ForecastArray[] all = inputs.toArray(new ForecastArray[0]);
        boolean parallel = block instanceof ParallelBlock;
        boolean trained = isTrained(block);
        ForecastArray output = all[0].with(trained);
        all[0] = parallel ? all[0] : output;
        for (Block child : block.getChildren().values()) {
            output = pass.visit(child, all);
            trained |= output.differentiated();
            output = output.with(trained);
            all = parallel ? all : new ForecastArray[] {output};
        }
        return output;
    }

    /** Refuses a block of the library that communicates, and cannot say what from shapes yet. */
    private static void checkSilent(Block block) {
        boolean ours = block.getClass().getName().startsWith("io.djltp.nn.");
        if (ours && !SILENT.contains(block.getClass())) {
            throw new IllegalArgumentException(
                    "The cost of a "
                            + block.getClass().getSimpleName()
                            + " is not forecast yet: count a step of it with CommunicationCounter");
        }
    }

    private static boolean isTrained(Block block) {
        return block.getDirectParameters().values().stream().anyMatch(Parameter::requiresGradient);
    }
}
