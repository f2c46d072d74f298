package io.djltp.internal.forecast;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.layout.Region;
import io.djltp.internal.layout.Region.Features;
import io.djltp.internal.layout.Region.Rows;
import io.djltp.internal.layout.Region.Tokens;

import org.jspecify.annotations.Nullable;

import java.util.Objects;

/**
 * An activation that is not there yet.
 *
 * @param shape its shape over all ranks: all rows of the batch, all features
 * @param region its placement over the ranks
 * @param cut how its last axis is cut, or {@code null} if every rank has all features
 * @param differentiated whether something that it is computed of is trained, so that its gradient
 *     is computed
 */
public record ForecastArray(Shape shape, Region region, @Nullable Cut cut, boolean differentiated) {

    /**
     * Returns the same layout of another shape.
     *
     * @param other the shape over all ranks
     * @return the array
     */
    public ForecastArray withShape(Shape other) {
        return new ForecastArray(other, region, cut, differentiated);
    }

    /**
     * Returns the same array, computed of something that is trained, too.
     *
     * @param trained whether it is
     * @return the array
     */
    public ForecastArray with(boolean trained) {
        return new ForecastArray(shape, region, cut, differentiated || trained);
    }

    /**
     * Returns the same array with other rows.
     *
     * @param rows how they lie
     * @return the array
     */
    public ForecastArray with(Rows rows) {
        return new ForecastArray(shape, region.with(rows), cut, differentiated);
    }

    /**
     * Returns the same array with other tokens.
     *
     * @param tokens how they lie
     * @return the array
     */
    public ForecastArray with(Tokens tokens) {
        return new ForecastArray(shape, region.with(tokens), cut, differentiated);
    }

    /**
     * Returns the sum with another array of the same shape.
     *
     * @param other the other array
     * @return the sum
     * @throws IllegalArgumentException if the two lie otherwise over the ranks
     */
    public ForecastArray plus(ForecastArray other) {
        if (!region.equals(other.region) || !Objects.equals(cut, other.cut)) {
            throw Errors.argument(
                    "An array %s is added to another one that has another placement, %s"
                            + " and %s: build all layers between the two with the same"
                            + " optSequenceParallel",
                    shape, region, other.region);
        }
        return with(other.differentiated);
    }

    /**
     * Returns the same array with all features on every rank.
     *
     * @return the array
     */
    public ForecastArray replicated() {
        return new ForecastArray(shape, region.with(Features.REPLICATED), null, differentiated);
    }

    /**
     * Returns the same array as slices of its features.
     *
     * @param slices how the last axis is cut
     * @return the array
     */
    public ForecastArray cutBy(Cut slices) {
        return new ForecastArray(shape, region.with(Features.SHARD), slices, differentiated);
    }

    /**
     * Returns an array with the same rows and other features.
     *
     * @param features the length of the last axis over all ranks
     * @return the array, with all features on every rank
     */
    public ForecastArray withFeatures(long features) {
        long[] dimensions = shape.getShape().clone();
        dimensions[dimensions.length - 1] = features;
        return withShape(new Shape(dimensions)).replicated();
    }
}
