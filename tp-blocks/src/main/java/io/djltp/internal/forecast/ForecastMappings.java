package io.djltp.internal.forecast;

import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.cut.Cut;
import io.djltp.internal.layout.Region.Rows;
import io.djltp.internal.layout.Region.Tokens;
import io.djltp.internal.layout.TokenCut;

/**
 * What the autograd mappings of a block will issue, by the methods of {@link
 * io.djltp.internal.region.RegionMappings} that have the same names. Each takes the input of the
 * mapping and returns its output. \(N\) is the size of the whole array on the rank, with its rows.
 */
public final class ForecastMappings {

    private final PassForecast pass;
    private final String user;
    private final String type; // of the user

    ForecastMappings(PassForecast pass, String user, String type) {
        this.pass = pass;
        this.user = user;
        this.type = type;
    }

    /**
     * Notes an identity, whose gradient is all-reduced: \(N\) bytes.
     *
     * @param input what every rank has
     * @return the input
     */
    public ForecastArray copyToRegion(ForecastArray input) {
        if (input.differentiated()) {
            add(Direction.BACKWARD, Collective.ALL_REDUCE, input);
        }
        return input;
    }

    /**
     * Notes an all-reduce of \(N\) bytes, whose gradient is the identity.
     *
     * @param input the sum, of which each rank has a summand
     * @return the sum on every rank
     */
    public ForecastArray reduceFromRegion(ForecastArray input) {
        add(Direction.FORWARD, Collective.ALL_REDUCE, input);
        return input;
    }

    /**
     * Notes an all-gather of the features, \(N\) bytes, whose gradient is the own slice.
     *
     * @param input the slices
     * @return the whole on every rank
     */
    public ForecastArray gatherFromRegion(ForecastArray input) {
        ForecastArray whole = input.replicated();
        add(Direction.FORWARD, Collective.ALL_GATHER, whole);
        return whole;
    }

    /**
     * Notes the own slice of the features, whose gradients are all-gathered, or all-reduced where
     * several ranks have the same: \(N\) bytes.
     *
     * @param input what every rank has
     * @param cut how the last axis is cut
     * @return the slices
     */
    public ForecastArray scatterToRegion(ForecastArray input, Cut cut) {
        if (input.differentiated()) {
            add(
                    Direction.BACKWARD,
                    cut.isPartition() ? Collective.ALL_GATHER : Collective.ALL_REDUCE,
                    input);
        }
        return input.cutBy(cut);
    }

    /**
     * Notes an all-gather of rows, or of tokens, \(N\) bytes, whose gradient is reduce-scattered if
     * it is partial, or else the own ones.
     *
     * @param input the rows or the tokens of the rank
     * @param partialGradient whether every rank's gradient is a summand
     * @return all of them
     */
    public ForecastArray gatherFromSequenceRegion(ForecastArray input, boolean partialGradient) {
        ForecastArray whole =
                input.region().isTokensCut() ? input.with(Tokens.WHOLE) : input.with(Rows.WHOLE);
        add(Direction.FORWARD, Collective.ALL_GATHER, whole);
        if (partialGradient && input.differentiated()) {
            add(Direction.BACKWARD, Collective.REDUCE_SCATTER, whole);
        }
        return whole;
    }

    /**
     * Notes the own rows, whose gradients are all-gathered: \(N\) bytes.
     *
     * @param input all rows
     * @return the rows of the rank
     */
    public ForecastArray scatterToSequenceRegion(ForecastArray input) {
        if (input.differentiated()) {
            add(Direction.BACKWARD, Collective.ALL_GATHER, input);
        }
        return input.with(Rows.CUT);
    }

    /**
     * Notes a reduce-scatter of rows, whose gradients are all-gathered: \(N\) bytes each.
     *
     * @param input the sum, of which each rank has a summand
     * @return the rows of the rank
     */
    public ForecastArray reduceScatterToSequenceRegion(ForecastArray input) {
        add(Direction.FORWARD, Collective.REDUCE_SCATTER, input);
        return scatterToSequenceRegion(input);
    }

    /**
     * Notes the own tokens of an array that all ranks have, whose gradients are all-gathered: \(N\)
     * bytes.
     *
     * @param whole all tokens
     * @return the tokens of the rank
     * @throws IllegalArgumentException if there are fewer tokens than ranks, or the tokens or the
     *     features are sharded already
     */
    public ForecastArray scatterTokens(ForecastArray whole) {
        TokenCut.checkWhole(type, whole.region(), whole.shape());
        TokenCut.of(type, pass.getMesh().isOverlaid(), pass.local(whole), pass.getTensorSize());
        if (whole.differentiated()) {
            add(Direction.BACKWARD, Collective.ALL_GATHER, whole);
        }
        return whole.with(Tokens.CUT);
    }

    /**
     * Notes a reduce-scatter of tokens, whose gradients are all-gathered: \(N\) bytes each.
     *
     * @param summand the rank's summand of all tokens
     * @return the tokens of the rank
     * @throws IllegalArgumentException if there are fewer tokens than ranks
     */
    public ForecastArray reduceScatterTokens(ForecastArray summand) {
        add(Direction.FORWARD, Collective.REDUCE_SCATTER, summand);
        return scatterTokens(summand);
    }

    /**
     * Notes an operation over the tensor-parallel group that is none of the mappings.
     *
     * @param direction when
     * @param collective the operation
     * @param shape the whole array that it is about, in the type of the parameters
     */
    public void add(Direction direction, Collective collective, Shape shape) {
        pass.add(user, direction, collective, pass.getTensorSize(), pass.bytes(shape));
    }

    private void add(Direction direction, Collective collective, ForecastArray array) {
        add(direction, collective, pass.local(array));
    }
}
