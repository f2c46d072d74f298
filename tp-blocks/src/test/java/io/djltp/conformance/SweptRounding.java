package io.djltp.conformance;

import ai.djl.ndarray.types.DataType;

import io.djltp.testing.TrainerKind;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/**
 * What rounding does to the results of a case under DJL's own trainer, for arrays that are what is
 * left of summands that cancel.
 *
 * <p>A sum of n products in any order differs from the exact one by
 *
 * <pre>
 *   |fl(sum a_i b_i) - sum a_i b_i|  &lt;=  n eps sum |a_i b_i|,     about sqrt(n) eps by chance
 * </pre>
 *
 * (Higham, Accuracy and Stability of Numerical Algorithms, 3.1), which is relative to the summands
 * and not to the sum. In a network the summands are not at hand, but their effect is: the same
 * training of DJL, with the last bit of every parameter and number of the data changed by chance,
 * rounds differently in every operation, and none of these results is righter than another
 * (stochastic arithmetic: Vignes, 1993). With the result r of the same network in float64, and
 * those of {@code K} = 8 such trainings in float32, d_k, an array a of the ranks is allowed
 *
 * <pre>
 *   max |a - r|  &lt;=  4 max_k max |d_k - r|
 * </pre>
 *
 * <p>and in float64, whose numbers have 29 bits more, {@code 2^-29} of that.
 *
 * <p>Ranks add up to 8 partial sums in another order: an error of the same bound, no larger than
 * DJL's but for chance. For errors of normal distribution, one number is more than four times the
 * largest of eight others in 1.5 of 10,000 arrays that are asked about, and these are few; an array
 * of several numbers far less often. What is computed wrong, such as a bias twice or a summand not
 * at all, is wrong by its own size, which is 4 times the rounding error only where DJL's result is
 * noise as well.
 */
final class SweptRounding {

    private static final double FACTOR = 4;

    private static final int SAMPLES = 8;

    private final SweptCase drawn;
    private final Map<String, double[]> exact;
    private final List<Map<String, double[]>> samples = new ArrayList<>();

    /**
     * Trains as often as it takes.
     *
     * @param drawn the case
     * @param run what is trained
     */
    SweptRounding(SweptCase drawn, Function<SweptTraining, Map<String, double[]>> run) {
        this.drawn = drawn;
        List<float[]> initial = SweptTraining.initial(drawn);
        TrainerKind plain = TrainerKind.PLAIN;
        exact = run.apply(new SweptTraining(drawn, plain, DataType.FLOAT64, 0, initial));
        for (int k = 1; k <= SAMPLES; k++) {
            samples.add(run.apply(new SweptTraining(drawn, plain, DataType.FLOAT32, k, initial)));
        }
    }

    /** Returns whether the error of an array is not larger than what rounding explains. */
    boolean explains(String name, double[] actual) {
        double allowed = 0;
        for (Map<String, double[]> sample : samples) {
            allowed = Math.max(allowed, SweptDifference.of(sample.get(name), exact.get(name)));
        }
        double unit = drawn.type() == DataType.FLOAT64 ? 0x1p-29 : 1; // against float32
        return SweptDifference.of(actual, exact.get(name)) <= FACTOR * unit * allowed;
    }
}
