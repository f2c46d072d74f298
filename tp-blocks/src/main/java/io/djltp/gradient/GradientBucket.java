package io.djltp.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.torch.Autograd;
import io.djltp.update.FlatGradients;

import java.util.List;

/**
 * Gradients of a rank that are summed over other ranks by one all-reduce: of one type, on one
 * device, over one group. Several are copied into memory that the bucket keeps from step to step; a
 * gradient that is alone stays where it is.
 */
final class GradientBucket implements AutoCloseable {

    private final List<Member> members;
    private final Communicator group;
    private final String issuer;
    private final BucketSum sum;

    /**
     * Creates a bucket.
     *
     * @param members the parameters, of one type and on one device
     * @param group the ranks that gradients are summed over
     * @param issuer what errors call the gradients
     */
    GradientBucket(List<Member> members, Communicator group, String issuer) {
        this.members = members;
        this.group = group;
        this.issuer = issuer;
        sum =
                new BucketSum(
                        members.size() == 1
                                ? null
                                : new FlatGradients(members.stream().map(Member::value).toList()));
    }

    /**
     * A parameter of the bucket.
     *
     * @param parameter the parameter
     * @param value the rank's shard or replica
     * @param group the group over which its gradient is summed, or {@code null}
     */
    record Member(Parameter parameter, NDArray value, Communicator group) {

        /** Returns whether nothing has changed. (Arrays are equal if their elements are.) */
        boolean isSame(Member other) {
            return parameter == other.parameter && value == other.value && group == other.group;
        }

        /** Returns the bytes of the gradient. */
        long bytes() {
            return value.size() * value.getDataType().getNumOfBytes();
        }
    }

    /**
     * Begins to sum the gradients, and takes them from their leaves if it has a copy. A rank
     * without a gradient takes part: others may have one.
     */
    void start() {
        sum.releaseAlone(); // of a step that has failed
        if (sum.flat() == null) {
            sum.start(Autograd.gradientOrZeros(members.get(0).value()), group, issuer);
            return;
        }
        for (int i = 0; i < members.size(); i++) {
            NDArray value = members.get(i).value();
            try (NDArray gradient = Autograd.gradient(value)) {
                sum.flat().set(i, gradient);
            }
            Autograd.dropGradient(value); // its memory is free for what comes next
        }
        sum.start(group, issuer);
    }

    /** Waits for the sum. */
    void await() {
        sum.await();
    }

    /** Returns the sum of a member's gradients, which stays open until {@link #releaseAlone()}. */
    NDArray get(int number) {
        return sum.get(number);
    }

    /** Frees the gradient that is not in the memory of the bucket. */
    void releaseAlone() {
        sum.releaseAlone();
    }

    /** Frees the memory that is kept. */
    @Override
    public void close() {
        sum.close();
    }
}
