package io.djltp.internal.gradient;

/**
 * Over which axes of the mesh a rank's gradient of a parameter is a summand of the whole.
 *
 * @param data whether the parameter was used with the rank's rows
 * @param tensor whether it was used with the rank's slice of the features
 */
public record PartialAxes(boolean data, boolean tensor) {

    /**
     * Returns whether the gradient is a summand at all.
     *
     * @return whether it is one over an axis
     */
    public boolean isPartial() {
        return data || tensor;
    }
}
