package io.djltp.head;

/** The range of numbers in which a pass that subtracts nothing from its logits loses no digits. */
final class UsableRange {

    /** Sums of which no summand that matters has left the range of float32. */
    private static final double LEAST_SUM = 1e-20;

    private static final double LARGEST_SUM = 1e30;

    private UsableRange() {}

    /**
     * Returns whether all sums of exponentials are in it, of which none then is infinite or NaN.
     */
    static boolean holdsSums(double[] sums) {
        boolean all = true;
        for (double sum : sums) {
            all &= sum >= LEAST_SUM && sum <= LARGEST_SUM;
        }
        return all;
    }

    /** The same of the logits of labels, which are not in the sums. */
    static boolean holdsLogits(double[] logits) {
        double largest = Math.log(LARGEST_SUM);
        boolean all = true;
        for (double logit : logits) {
            all &= logit <= largest && logit > Double.NEGATIVE_INFINITY;
        }
        return all;
    }
}
