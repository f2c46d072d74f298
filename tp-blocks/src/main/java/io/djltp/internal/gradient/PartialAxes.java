package io.djltp.internal.gradient;

/**
 * Over which axes of the mesh a rank's gradient of a parameter is a summand of the whole.
 *
 * @param data whether the parameter was used with the rank's rows
 * @param tensor whether it was used with the rank's slice of the features
 */
public record PartialAxes(boolean data, boolean tensor) {

    /** Over which ranks the gradient of a parameter is summed. */
    public enum Over {
        /** Over none: the rank has the whole gradient of what it holds. */
        NONE,
        /** Over those along the axis data. */
        DATA,
        /** Over those along the axis tensor. */
        TENSOR,
        /** Over all. */
        ALL
    }

    /**
     * Returns over which ranks a gradient is summed.
     *
     * @param cut whether the parameter is cut
     * @param overlaid whether both axes have the same ranks
     * @return the ranks
     */
    public Over over(boolean cut, boolean overlaid) {
        if (overlaid) {
            return !cut && (data || tensor) ? Over.ALL : Over.NONE;
        }
        if (tensor && !cut) {
            return data ? Over.ALL : Over.TENSOR;
        }
        return data ? Over.DATA : Over.NONE;
    }
}
