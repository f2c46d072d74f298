package io.djltp.head;

import io.djltp.torch.HostReads;

import org.bytedeco.pytorch.Tensor;

import java.util.function.DoublePredicate;
import java.util.stream.DoubleStream;

/** The range of numbers in which a pass that subtracts nothing from its logits loses no digits. */
final class UsableRange {

    /** Sums of which no summand that matters has left the range of float32. */
    private static final double LEAST_SUM = 1e-20;

    private static final double LARGEST_SUM = 1e30;

    private UsableRange() {}

    /**
     * Returns whether all sums of exponentials are in it, of which none then is infinite or NaN.
     */
    static boolean holdsSums(Tensor sums) {
        return areAll(sums, sum -> sum >= LEAST_SUM && sum <= LARGEST_SUM);
    }

    /** The same of the logits of labels, which are not in the sums. */
    static boolean holdsLogits(Tensor logits) {
        double largest = Math.log(LARGEST_SUM);
        return areAll(logits, logit -> logit <= largest && logit > Double.NEGATIVE_INFINITY);
    }

    /** They are few, and read at once: that takes less time than an operation on them. */
    private static boolean areAll(Tensor few, DoublePredicate test) {
        return few.numel() == 0 || DoubleStream.of(HostReads.doubles(few)).allMatch(test);
    }
}
