package io.djltp.head;

import io.djltp.internal.Errors;

/**
 * A margin by which the angle between features and the weight of their class has to be smaller than
 * those to the other classes, in a softmax over cosines.
 *
 * <p>Features and rows of the weight count by their direction only. The logit of a class at the
 * angle theta is {@code scale * cos(theta)}, and in training that of the label {@code scale *
 * (cos(m1 * theta + m2) - m3)}. Where {@code m1 * theta + m2} is larger than pi, that formula would
 * reward larger angles; there the cosine is continued downwards as in SphereFace, to {@code (-1)^k
 * * cos(m1 * theta + m2) - 2 * k} with {@code k = floor((m1 * theta + m2) / pi)}, which is
 * continuous and falls everywhere. (ArcFace's own code has the plain formula in some versions, and
 * in others {@code cos(theta) - m * sin(m)}, which jumps.)
 *
 * <p>ArcFace: Deng et al., 2019, <a href="https://arxiv.org/abs/1801.07698">arXiv:1801.07698</a>.
 * CosFace: Wang et al., 2018, <a href="https://arxiv.org/abs/1801.09414">arXiv:1801.09414</a>.
 * SphereFace: Liu et al., 2017, <a href="https://arxiv.org/abs/1704.08063">arXiv:1704.08063</a>.
 *
 * @param scale the factor of the cosines, above 0
 * @param m1 the factor of the angle, 1 or more; 1 has no effect
 * @param m2 what is added to the angle, in radians, from 0 to below pi
 * @param m3 what is subtracted from the cosine, 0 or more
 */
public record Margin(float scale, float m1, float m2, float m3) {

    /**
     * Creates a margin.
     *
     * @param scale above 0
     * @param m1 1 or more
     * @param m2 from 0 to below pi
     * @param m3 0 or more
     * @throws IllegalArgumentException if a value is out of its range
     */
    public Margin {
        check(scale > 0 && Float.isFinite(scale), "scale", scale, "above 0");
        check(m1 >= 1 && Float.isFinite(m1), "m1", m1, "1 or more");
        check(m2 >= 0 && m2 < Math.PI, "m2", m2, "from 0 to below pi, in radians");
        check(m3 >= 0 && Float.isFinite(m3), "m3", m3, "0 or more");
    }

    private static void check(boolean right, String name, float value, String range) {
        Errors.check(right, "The %s of a margin must be %s, not %s", name, range, value);
    }

    /**
     * Returns the additive angular margin of ArcFace: {@code cos(theta + m)}.
     *
     * @param scale the factor of the cosines, 64 in the paper
     * @param m the margin in radians, 0.5 in the paper
     * @return the margin
     */
    public static Margin arcFace(float scale, float m) {
        return new Margin(scale, 1, m, 0);
    }

    /**
     * Returns the additive cosine margin of CosFace: {@code cos(theta) - m}.
     *
     * @param scale the factor of the cosines, 64 in the paper
     * @param m the margin, 0.35 in the paper
     * @return the margin
     */
    public static Margin cosFace(float scale, float m) {
        return new Margin(scale, 1, 0, m);
    }

    /**
     * Returns all three margins in one: {@code cos(m1 * theta + m2) - m3}.
     *
     * @param scale the factor of the cosines
     * @param m1 the factor of the angle
     * @param m2 what is added to the angle
     * @param m3 what is subtracted from the cosine
     * @return the margin
     */
    public static Margin combined(float scale, float m1, float m2, float m3) {
        return new Margin(scale, m1, m2, m3);
    }
}
