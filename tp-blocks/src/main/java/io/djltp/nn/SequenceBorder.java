package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;

/**
 * A border of a sequence-parallel region. With one tensor-parallel rank, and under an ordinary
 * parameter store, it is the identity, and it is saved as one.
 */
abstract class SequenceBorder extends AbstractBlock implements ForecastBlock {

    private static final byte VERSION = 2; // that of DJL's LambdaBlock

    /** Creates a block. */
    SequenceBorder() {
        super(VERSION);
    }

    /**
     * Takes an array over the border.
     *
     * @param context the rank, one of several
     * @param input the array on this side
     * @return the array on the other side
     */
    abstract NDArray cross(ParallelContext context, NDArray input);

    /** Notes what that communicates, of several ranks. */
    abstract ForecastArray cross(PassForecast pass, ForecastArray input);

    /** {@inheritDoc} */
    @Override
    public final ForecastArray forecast(PassForecast pass, ForecastArray input) {
        return pass.getTensorSize() == 1 ? input : cross(pass, input);
    }

    /** {@inheritDoc} */
    @Override
    protected final NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        ParallelContext context = RankParameterStore.contextOf(store);
        NDArray input = inputs.singletonOrThrow();
        if (context == null || context.getTensorGroup().getSize() == 1) {
            return new NDList(input);
        }
        return new NDList(cross(context, input));
    }

    /** {@inheritDoc} */
    @Override
    public final Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }
}
