package io.djltp.nn;

import ai.djl.nn.Parameter;

import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.PassForecast;

/** What becomes of the input and the output of a column- or row-parallel layer, from shapes. */
final class LayerForecast {

    private LayerForecast() {}

    /**
     * Returns the input as the layer computes with it: in MIXED mode with the rows of all ranks.
     */
    static ForecastArray input(
            AbstractParallelLinear layer, PassForecast pass, ForecastArray input) {
        if (pass.getTensorSize() > 1) {
            checkTokens(layer, layer.takesTokens());
            check(layer, input);
        }
        boolean gathers = pass.getMesh().isOverlaid() && input.region().isRowsCut();
        boolean partial = layer.hasPartialInputGradient();
        return gathers ? pass.getMappings(layer).gatherFromSequenceRegion(input, partial) : input;
    }

    /** Refuses what cannot be forecast yet: tokens that are cut. */
    static void checkTokens(AbstractParallelLinear layer, boolean sequenceParallel) {
        if (sequenceParallel) {
            throw new IllegalArgumentException(
                    layer.getClass().getSimpleName()
                            + " is built with optSequenceParallel(true), whose cost is not forecast"
                            + " yet: build it without, or count a step with CommunicationCounter");
        }
    }

    /** Returns the whole output, which has a gradient if the layer is trained. */
    static ForecastArray output(AbstractParallelLinear layer, ForecastArray input) {
        boolean trained =
                layer.getDirectParameters().values().stream().anyMatch(Parameter::requiresGradient);
        return input.withFeatures(layer.weight().getShape().get(0)).with(trained);
    }

    /** Refuses a network that the layer could not be a part of, before it is trained. */
    private static void check(AbstractParallelLinear layer, ForecastArray input) {
        if (layer.takesTokens()) {
            throw new IllegalArgumentException(
                    layer.getClass().getSimpleName()
                            + " with optSequenceParallel(true) cannot be forecast: train a step, and"
                            + " count");
        }
        if (input.region().isShard() != layer.takesSlice()) {
            throw new IllegalArgumentException(
                    layer.getClass().getSimpleName()
                            + " with a weight of "
                            + layer.weight().getShape()
                            + (layer.takesSlice()
                                    ? " needs a slice of the features, and gets an input that is"
                                            + " whole: let a ColumnParallelLinear come before it, or"
                                            + " build it with optInputIsParallel(false)"
                                    : " needs an input that is whole, and gets a slice of the"
                                            + " features: build the layer before it with"
                                            + " optGatherOutput(true), or let a RowParallelLinear"
                                            + " take the slice"));
        }
    }
}
