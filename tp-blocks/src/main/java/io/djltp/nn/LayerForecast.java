package io.djltp.nn;

import ai.djl.nn.Parameter;

import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.PassForecast;

/** What becomes of the input and the output of a column- or row-parallel layer, from shapes. */
final class LayerForecast {

    private LayerForecast() {}

    /** Returns the input as the layer computes with it: with the rows, or tokens, of all ranks. */
    static ForecastArray input(
            AbstractParallelLinear layer, PassForecast pass, ForecastArray input) {
        if (pass.getTensorSize() == 1) {
            return input;
        }
        check(layer, input);
        if (input.region().isTokensCut()) {
            return SequenceForecast.gather(pass, layer, input, layer.hasPartialInputGradient());
        }
        if (!pass.getMesh().isOverlaid() || !input.region().isRowsCut()) {
            return input;
        }
        if (!layer.isBatchShardedInput()) {
            throw new IllegalArgumentException(
                    describe(layer)
                            + " gets the rows of a rank in MIXED mode, but is cut over the ranks:"
                            + " build the first tensor-parallel layer with"
                            + " optBatchShardedInput(true), in a plan"
                            + " Style.column().batchShardedInput()");
        }
        return pass.getMappings(layer)
                .gatherFromSequenceRegion(input, layer.hasPartialInputGradient());
    }

    private static String describe(AbstractParallelLinear layer) {
        return layer.getClass().getSimpleName() + " with a weight of " + layer.weight().getShape();
    }

    /** Returns the whole output, which has a gradient if the layer is trained. */
    static ForecastArray output(AbstractParallelLinear layer, ForecastArray input) {
        boolean trained =
                layer.getDirectParameters().values().stream().anyMatch(Parameter::requiresGradient);
        return input.withFeatures(layer.weight().getShape().get(0)).with(trained);
    }

    /** Refuses a network that the layer could not be a part of, before it is trained. */
    private static void check(AbstractParallelLinear layer, ForecastArray input) {
        if (input.region().isTokensCut() && !layer.takesTokens()) {
            throw new IllegalArgumentException(
                    describe(layer)
                            + " gets a rank's tokens of a sequence-parallel region, and needs all"
                            + " of them: build a ColumnParallelLinear with"
                            + " optSequenceParallel(true), or put a SequenceGather before the"
                            + " layer");
        }
        if (input.region().isShard() != layer.takesSlice()) {
            throw new IllegalArgumentException(
                    describe(layer)
                            + (layer.takesSlice()
                                    ? " needs a slice of the features, and gets an input that is"
                                            + " whole: let a ColumnParallelLinear come before it,"
                                            + " or build it with optInputIsParallel(false)"
                                    : " needs an input that is whole, and gets a slice of the"
                                            + " features: build the layer before it with"
                                            + " optGatherOutput(true), or let a RowParallelLinear"
                                            + " take the slice"));
        }
    }
}
