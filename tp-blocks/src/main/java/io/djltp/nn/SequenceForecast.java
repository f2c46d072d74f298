package io.djltp.nn;

import ai.djl.nn.Block;

import io.djltp.collective.Collective;
import io.djltp.collective.Direction;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.PassForecast;
import io.djltp.layout.Region.Tokens;

/**
 * What the ways of a {@link SequenceRegion} will issue, by the methods that have the same names.
 * \(N\) is the size of all tokens of the rank's rows.
 */
public final class SequenceForecast {

    private SequenceForecast() {}

    /**
     * Notes the own tokens of an array that all ranks have, whose gradients are all-gathered: \(N\)
     * bytes.
     *
     * @param pass the pass of one rank
     * @param user the block
     * @param whole all tokens
     * @return the rank's tokens
     * @throws IllegalArgumentException if there are fewer tokens than ranks, or the tokens or the
     *     features are cut already
     */
    public static ForecastArray scatter(PassForecast pass, Block user, ForecastArray whole) {
        if (whole.region().isShard() || whole.region().isTokensCut()) {
            throw new IllegalArgumentException(
                    user.getClass().getSimpleName()
                            + " cuts the tokens of an array that all ranks have, and gets "
                            + whole.shape()
                            + (whole.region().isShard()
                                    ? ", a slice of the features: let a RowParallelLinear with"
                                            + " optSequenceParallel(true) follow instead"
                                    : ", whose tokens are cut already: remove one of the two"));
        }
        return enter(pass, user, whole);
    }

    /**
     * Notes a reduce-scatter of summands, whose gradients are all-gathered: \(N\) bytes each.
     *
     * @param pass the pass of one rank
     * @param user the block
     * @param summand the rank's summand of all tokens
     * @return the rank's tokens of the sum
     * @throws IllegalArgumentException if there are fewer tokens than ranks
     */
    public static ForecastArray reduceScatter(
            PassForecast pass, Block user, ForecastArray summand) {
        add(pass, user, Direction.FORWARD, Collective.REDUCE_SCATTER, summand);
        return enter(pass, user, summand);
    }

    /**
     * Notes an all-gather of \(N\) bytes, whose gradients are reduce-scattered if they are
     * summands, or else the own tokens.
     *
     * @param pass the pass of one rank
     * @param user the block
     * @param own the rank's tokens
     * @param partial whether tensor-parallel products follow
     * @return all tokens
     */
    public static ForecastArray gather(
            PassForecast pass, Block user, ForecastArray own, boolean partial) {
        ForecastArray whole = own.with(Tokens.WHOLE);
        add(pass, user, Direction.FORWARD, Collective.ALL_GATHER, whole);
        if (partial && own.differentiated()) {
            add(pass, user, Direction.BACKWARD, Collective.REDUCE_SCATTER, whole);
        }
        return whole;
    }

    private static ForecastArray enter(PassForecast pass, Block user, ForecastArray whole) {
        if (pass.getMesh().isOverlaid()) {
            throw new IllegalArgumentException(
                    user.getClass().getSimpleName()
                            + " cuts the tokens over the tensor-parallel ranks, and in MIXED mode"
                            + " the rows of the batch are cut over the same ranks: use TENSOR mode"
                            + " or a mesh of data and tensor");
        }
        if (whole.differentiated()) {
            add(pass, user, Direction.BACKWARD, Collective.ALL_GATHER, whole);
        }
        ForecastArray own = whole.with(Tokens.CUT);
        pass.local(own); // refuses fewer tokens than ranks
        return own;
    }

    private static void add(
            PassForecast pass,
            Block user,
            Direction direction,
            Collective collective,
            ForecastArray whole) {
        pass.getMappings(user).add(direction, collective, pass.local(whole));
    }
}
