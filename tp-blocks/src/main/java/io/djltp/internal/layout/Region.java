package io.djltp.internal.layout;

/**
 * The placement of an activation along each axis of the mesh.
 *
 * @param rows the placement of its rows, those of the batch, along the axis data
 * @param features the placement of its features along the axis tensor
 * @param tokens the placement of its tokens along the axis tensor
 */
public record Region(Rows rows, Features features, Tokens tokens) {

    /** All ranks have the same: the whole. */
    public static final Region WHOLE = new Region(Rows.WHOLE, Features.REPLICATED);

    /** The placement of the rows of the batch along the axis data. */
    public enum Rows {
        /** All ranks have all rows. */
        WHOLE,
        /** Each rank has its part of the batch. */
        CUT
    }

    /** The placement of the features along the axis tensor. */
    public enum Features {
        /** All ranks have the same, and compute the same with it. */
        REPLICATED,
        /** Each rank has its slice, or what was computed of it. */
        SHARD
    }

    /** The placement of the tokens along the axis tensor. */
    public enum Tokens {
        /** All ranks have all tokens. */
        WHOLE,
        /** Each rank has its part of them, with all features: the sequence-parallel region. */
        CUT
    }

    /**
     * Creates a region in which all ranks have all tokens.
     *
     * @param rows the placement of the rows
     * @param features the placement of the features
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
     * @param other the placement of the tokens
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
     * @param other the placement of the features
     * @return the region
     */
    public Region with(Features other) {
        return new Region(rows, other, tokens);
    }

    /**
     * Returns the region of the same features with other rows.
     *
     * @param other the placement of the rows
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
