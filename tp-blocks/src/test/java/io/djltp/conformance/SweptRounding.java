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
 * those of {@code K} = 8 such trainings in the type of the case, d_k, an array a of the ranks is
 * allowed
 *
 * <pre>
 *   max |a - r|  &lt;=  4 max_k max |d_k - r|
 * </pre>
 *
 * <p>Two remainders are not in these samples. Where DJL's results are exactly 0 in all of them, as
 * the gradient of a softmax over equal tokens may be by symmetry, the rounding of one number of the
 * largest array is allowed. And the loss of classes is {@code log Z - z}, of which a small one is
 * what is left: of logits below 16, float32 leaves twice {@code 2^-21}, and as much of the {@code p
 * - y} that all gradients are made of. Relative to a loss l, that is {@code 2^-20 / l}, which is
 * more than 1e-5 where l is below 0.1.
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

    private static final double LOGIT_ROUNDING = 0x1p-20;

    private final double remainder; // where all is zero
    private final double relative; // of a small loss
    private final Map<String, double[]> exact;
    private final List<Map<String, double[]>> samples = new ArrayList<>();

    /**
     * Trains as often as it takes.
     *
     * @param drawn the case
     * @param run what is trained
     * @param gradients whether that is one step that is the gradient
     */
    SweptRounding(
            SweptCase drawn,
            Function<SweptTraining, Map<String, double[]>> run,
            boolean gradients) {
        List<double[]> initial = SweptTraining.initial(drawn);
        TrainerKind plain = TrainerKind.PLAIN;
        exact = run.apply(new SweptTraining(drawn, plain, DataType.FLOAT64, 0, initial));
        for (int k = 1; k <= SAMPLES; k++) {
            samples.add(run.apply(new SweptTraining(drawn, plain, drawn.type(), k, initial)));
        }
        double most =
                exact.values().stream().mapToDouble(SweptDifference::largest).max().getAsDouble();
        remainder = drawn.remainder(gradients) * most;
        double loss = smallestLoss();
        relative = drawn.tree().end().classes() && loss > 0 ? LOGIT_ROUNDING / FACTOR / loss : 0;
    }

    private double smallestLoss() {
        return exact.entrySet().stream()
                .filter(entry -> entry.getKey().startsWith("loss "))
                .mapToDouble(entry -> entry.getValue()[0])
                .min()
                .getAsDouble();
    }

    /**
     * Returns whether the error of an array is not larger than what rounding explains.
     *
     * @param name the name of the array
     * @param actual its elements
     * @param other what another library has computed in float64; {@code null} for DJL
     * @return whether it is
     */
    boolean explains(String name, double[] actual, double[] other) {
        double allowed = 0;
        double size = 0;
        for (Map<String, double[]> sample : samples) {
            allowed = Math.max(allowed, SweptDifference.of(sample.get(name), exact.get(name)));
            size = Math.max(size, SweptDifference.largest(sample.get(name)));
        }
        allowed = size == 0 ? remainder : Math.max(allowed, relative * size);
        double[] right = other == null ? exact.get(name) : other;
        return SweptDifference.of(actual, right) <= FACTOR * allowed;
    }
}
