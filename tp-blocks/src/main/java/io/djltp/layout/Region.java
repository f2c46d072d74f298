package io.djltp.layout;

/**
 * How an activation lies over the ranks, on each axis of their mesh.
 *
 * @param rows how its rows, those of the batch, lie over the axis data
 * @param features how its features lie over the axis tensor
 * @param tokens how its tokens lie over the axis tensor
 */
public record Region(Rows rows, Features features, Tokens tokens) {

    /** All ranks have the same: the whole. */
    public static final Region WHOLE = new Region(Rows.WHOLE, Features.REPLICATED);

    /** How the rows of the batch lie over the axis data. */
    public enum Rows {
        /** All ranks have all rows. */
        WHOLE,
        /** Each rank has its part of the batch. */
        CUT
    }

    /** How the features lie over the axis tensor. */
    public enum Features {
        /** All ranks have the same, and compute the same with it. */
        REPLICATED,
        /** Each rank has its slice, or what was computed of it. */
        SHARD,
        /** Each rank has a summand of all of them. */
        PARTIAL
    }

    /** How the tokens lie over the axis tensor. */
    public enum Tokens {
        /** All ranks have all tokens. */
        WHOLE,
        /** Each rank has its part of them, with all features: the sequence-parallel region. */
        CUT
    }

    /**
     * Creates a region in which all ranks have all tokens.
     *
     * @param rows how the rows lie
     * @param features how the features lie
     */
    public Region(Rows rows, Features features) {
        this(rows, features, Tokens.WHOLE);
    }

    /**
     * Returns whether each rank has its tokens only.
     *
     * @return whether the tokens are cut
     */
    public boolean isTokensCut() {
        return tokens == Tokens.CUT;
    }

    /**
     * Returns the region of the same rows and features with other tokens.
     *
     * @param other how the tokens lie
     * @return the region
     */
    public Region with(Tokens other) {
        return new Region(rows, features, other);
    }

    /**
     * Returns whether each rank has its rows only.
     *
     * @return whether the rows are cut
     */
    public boolean isRowsCut() {
        return rows == Rows.CUT;
    }

    /**
     * Returns whether each rank has its slice of the features.
     *
     * @return whether the features are cut
     */
    public boolean isShard() {
        return features == Features.SHARD;
    }

    /**
     * Returns the region of the same rows with other features.
     *
     * @param other how the features lie
     * @return the region
     */
    public Region with(Features other) {
        return new Region(rows, other, tokens);
    }

    /**
     * Returns the region of the same features with other rows.
     *
     * @param other how the rows lie
     * @return the region
     */
    public Region with(Rows other) {
        return new Region(other, features, tokens);
    }

    /**
     * Returns a number of the region.
     *
     * @return the number, another for each region, less than 12
     */
    public int index() {
        int tokensAndRows = tokens.ordinal() * Rows.values().length + rows.ordinal();
        return tokensAndRows * Features.values().length + features.ordinal();
    }
}
