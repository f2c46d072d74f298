package io.djltp.internal.gradient;

/** Over which ranks the gradient of a parameter is summed. */
public enum SumOver {
    /** Over none: the rank has the whole gradient of what it holds. */
    NONE,
    /** Over those along the axis data. */
    DATA,
    /** Over those along the axis tensor. */
    TENSOR,
    /** Over all. */
    ALL;

    /**
     * Returns over which ranks a gradient is summed.
     *
     * @param axes over which axes a rank's gradient is a summand
     * @param cut whether the parameter is cut
     * @param overlaid whether both axes lie over the same ranks
     * @return the ranks
     */
    public static SumOver of(PartialAxes axes, boolean cut, boolean overlaid) {
        if (overlaid) {
            return !cut && axes.isPartial() ? ALL : NONE;
        }
        if (axes.tensor() && !cut) {
            return axes.data() ? ALL : TENSOR;
        }
        return axes.data() ? DATA : NONE;
    }
}
