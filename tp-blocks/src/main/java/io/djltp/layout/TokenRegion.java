package io.djltp.layout;

import ai.djl.ndarray.NDArray;

import io.djltp.layout.Region.Features;
import io.djltp.layout.Region.Tokens;
import io.djltp.layout.RegionScopes.Place;

/**
 * Where in a pass the tokens are cut over the tensor-parallel ranks: the sequence-parallel region,
 * in which each rank has all features of its tokens.
 *
 * <p>A parameter that is used there has a gradient that is a summand on each rank.
 */
public final class TokenRegion {

    private final RegionScopes scopes;
    private final ArrayRegions regions;
    private final PassTrace trace;
    private final ShapeErrors errors;

    TokenRegion(RegionScopes scopes, ArrayRegions regions, PassTrace trace, ShapeErrors errors) {
        this.scopes = scopes;
        this.regions = regions;
        this.trace = trace;
        this.errors = errors;
    }

    /**
     * Takes this rank's tokens into the region.
     *
     * @param array this rank's tokens, with all features
     * @param cut how the tokens are cut
     * @param below how the features lie that it was computed from: replicated, or a summand
     * @return the array
     */
    public NDArray enter(NDArray array, TokenCut cut, Features below) {
        Region whole = new Region(regions.rowsOf(array), Features.REPLICATED);
        Region region = whole.with(Tokens.CUT);
        trace.boundary(array, region, whole.with(below));
        trace.tokens(array, cut);
        scopes.attach(array, new Place(region, null, cut));
        errors.addTokens(array.getShape(), cut);
        return array;
    }

    /**
     * Takes the tokens of all ranks that a layer has gathered out of the region.
     *
     * @param array all tokens
     * @param partial whether the layer's gradient of them is a summand on each rank
     * @return the array
     */
    public NDArray leave(NDArray array, boolean partial) {
        Region region = new Region(regions.rowsOf(array), Features.REPLICATED);
        Features above = partial ? Features.SHARD : Features.REPLICATED;
        trace.boundary(array, region.with(above), region.with(Tokens.CUT));
        scopes.attach(array, region);
        return array;
    }

    /**
     * Returns how the tokens are cut of which an array is this rank's part.
     *
     * @param array the array
     * @return the cut, or {@code null} if all tokens are there
     * @throws IllegalStateException if the tokens are cut, and it is not known how
     */
    public TokenCut cutOf(NDArray array) {
        TokenCut cut = regions.tokensOf(array);
        if (cut == null && regions.of(array).isTokensCut()) {
            throw new IllegalStateException(
                    "The tokens of "
                            + array.getShape()
                            + " are cut over the ranks, and it cannot be known how: an operation on"
                            + " the way had a parameter as its first operand. Let the activation be"
                            + " the first: x.mul(w), not w.mul(x)");
        }
        return cut;
    }
}
