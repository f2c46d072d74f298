package io.djltp.internal.gradient;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.stream.Collectors;

/**
 * Which gradients are summed by one operation: those of one group, type and device, in the order of
 * the tree, until a bucket is full at 25 MiB, as in PyTorch's DistributedDataParallel. It follows
 * from the parameters alone.
 */
public final class BucketPlan {

    /** Bytes of a bucket. */
    public static final long BYTES = 25L << 20;

    /** From so many bytes on, a copy in host memory takes longer than an operation of its own. */
    private static final long LARGE_ON_HOST = 2L << 20;

    private static final int NAMED = 4; // parameters of a bucket that errors name

    private BucketPlan() {}

    /**
     * A gradient that may be summed.
     *
     * @param group what stands for the ranks over which it is summed, or {@code null} if it is not
     * @param sharedOut whether each of these ranks gets the sums of its elements alone
     * @param type its type
     * @param device where it is
     * @param bytes its size
     */
    public record Gradient(
            @Nullable Object group, boolean sharedOut, DataType type, Device device, long bytes) {

        private boolean isLarge() {
            return !device.isGpu() && bytes >= LARGE_ON_HOST;
        }
    }

    /** A bucket that may not be full. */
    private static final class Filling {

        private final Gradient first;
        private final List<Integer> numbers = new ArrayList<>();
        private long bytes;

        Filling(Gradient first) {
            this.first = first;
        }

        boolean takes(Gradient other, long limit) {
            return !first.isLarge()
                    && !other.isLarge()
                    && Objects.equals(first.group, other.group)
                    && first.sharedOut == other.sharedOut
                    && first.type == other.type
                    && first.device.equals(other.device)
                    && bytes + other.bytes <= limit;
        }
    }

    /**
     * Fills buckets.
     *
     * @param gradients all gradients, in the order of the tree
     * @param limit the bytes of a bucket; a larger gradient has one for itself
     * @return the numbers of the gradients of each bucket, in the order of issue
     */
    public static List<List<Integer>> fill(List<Gradient> gradients, long limit) {
        List<Filling> fillings = new ArrayList<>();
        for (int i = 0; i < gradients.size(); i++) {
            Gradient gradient = gradients.get(i);
            if (gradient.group == null) {
                continue;
            }
            Filling filling =
                    fillings.stream()
                            .filter(each -> each.takes(gradient, limit))
                            .findFirst()
                            .orElse(null);
            if (filling == null) {
                filling = new Filling(gradient);
                fillings.add(filling);
            }
            filling.numbers.add(i);
            filling.bytes += gradient.bytes;
        }
        return fillings.stream().map(filling -> filling.numbers).toList();
    }

    /**
     * Returns what errors and counts call the gradients of a bucket.
     *
     * @param names the names of the parameters
     * @return such as {@code the gradients of a, b, c, d and 2 more}
     */
    public static String describe(List<String> names) {
        String first = names.stream().limit(NAMED).collect(Collectors.joining(", "));
        int others = names.size() - NAMED;
        return (names.size() == 1 ? "the gradient of " : "the gradients of ")
                + first
                + (others > 0 ? " and " + others + " more" : "");
    }
}
