package io.djltp.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.SharedPart;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.Autograd;
import io.djltp.update.FlatGradients;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;

/**
 * Makes the gradients of what several ranks hold of parameters that are cut whole: each is summed
 * over these ranks, many in one operation, as {@link BucketPlan} says, before those of whole
 * parameters are summed over other axes.
 *
 * <p>The order of the buckets follows from the parameters and from the order of the groups, so that
 * ranks which have two groups in common issue their operations in the same order.
 */
final class ReplicaSums implements AutoCloseable {

    private final ParallelParameters parameters;
    private List<Member> members = List.of(); // all, in the order of the tree
    private final List<Bucket> buckets = new ArrayList<>(); // in the order of issue

    /**
     * Creates the sums of a rank.
     *
     * @param parameters the parameters
     */
    ReplicaSums(ParallelParameters parameters) {
        this.parameters = parameters;
    }

    /**
     * Sums the gradients, in their places.
     *
     * @param context the rank
     * @param trained the parameters that a step is about to update, in the order of the block tree
     */
    void run(ParallelContext context, Collection<Parameter> trained) {
        List<Member> now = new ArrayList<>();
        for (Parameter parameter : trained) {
            for (SharedPart part : parameters.getReplicas().getParts(context, parameter)) {
                NDArray value = parameters.getStore(context).getHeld(parameter);
                now.add(new Member(parameter, value, part));
            }
        }
        if (!BucketPlan.isFor(members, now, Member::isSame)) {
            close();
            plan(now);
        }
        buckets.forEach(Bucket::start);
        buckets.forEach(Bucket::finish);
    }

    private void plan(List<Member> all) {
        members = all;
        List<BucketPlan.Gradient> gradients = all.stream().map(Member::gradient).toList();
        for (List<Integer> numbers : BucketPlan.fill(gradients, BucketPlan.BYTES)) {
            List<Member> own = numbers.stream().map(all::get).toList();
            List<String> names =
                    own.stream()
                            .map(member -> parameters.nameOf(member.parameter()))
                            .distinct()
                            .toList();
            buckets.add(new Bucket(own, BucketPlan.describe(names)));
        }
    }

    /** Frees the memory of the buckets. */
    @Override
    public void close() {
        buckets.forEach(Bucket::close);
        buckets.clear();
        members = List.of();
    }

    /**
     * A part of a parameter.
     *
     * @param parameter the parameter
     * @param value the rank's shard
     * @param part what of it other ranks have too
     */
    private record Member(Parameter parameter, NDArray value, SharedPart part) {

        /** Returns whether nothing has changed. (Arrays are equal if their elements are.) */
        boolean isSame(Member other) {
            return parameter == other.parameter && value == other.value && part.equals(other.part);
        }

        BucketPlan.Gradient gradient() {
            long length = value.getShape().get(part.axis());
            long elements = value.size() / length * part.place().length();
            return new BucketPlan.Gradient(
                    part.group(),
                    value.getDataType(),
                    value.getDevice(),
                    elements * value.getDataType().getNumOfBytes());
        }

        private boolean isContiguous() {
            return part.axis() == 0 || part.place().length() == value.getShape().get(part.axis());
        }

        /** Returns the part of the gradient, of zeros where the rank has not used it. */
        private NDArray ofGradient() {
            try (NDArray gradient = Autograd.gradientOrZeros(value)) {
                return part.of(gradient);
            }
        }
    }

    /**
     * Parts of gradients that a rank has in common with some others, which are summed over these by
     * one all-reduce, and put back where they were. A part that is alone and has no gaps in memory
     * is summed where it is.
     */
    @SuppressWarnings("try") // a scope is used by being open
    private static final class Bucket implements AutoCloseable {

        private final List<Member> members;
        private final String issuer;
        private final BucketSum sum;

        /**
         * Creates a bucket.
         *
         * @param members the parts, of one type, on one device and of one group
         * @param issuer what errors call the gradients
         */
        Bucket(List<Member> members, String issuer) {
            this.members = members;
            this.issuer = issuer;
            boolean alone = members.size() == 1 && members.get(0).isContiguous();
            sum = new BucketSum(alone ? null : flat(members));
        }

        private static FlatGradients flat(List<Member> members) {
            List<NDArray> parts = new ArrayList<>();
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                members.forEach(member -> parts.add(member.part.of(member.value)));
                return new FlatGradients(parts);
            } finally {
                parts.forEach(NDArray::close);
            }
        }

        /** Begins to sum. */
        void start() {
            sum.releaseAlone(); // of a step that has failed
            Communicator group = members.get(0).part.group();
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                if (sum.flat() == null) {
                    sum.start(members.get(0).ofGradient(), group, issuer);
                    return;
                }
                for (int i = 0; i < members.size(); i++) {
                    try (NDArray part = members.get(i).ofGradient()) {
                        sum.flat().set(i, part);
                    }
                }
            }
            sum.start(group, issuer);
        }

        /** Waits for the sums, and puts them into the gradients. */
        void finish() {
            sum.await();
            sum.releaseAlone();
            if (sum.flat() != null) {
                try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                    for (int i = 0; i < members.size(); i++) {
                        try (NDArray part = members.get(i).ofGradient()) {
                            sum.flat().copyTo(i, part);
                        }
                    }
                }
            }
        }

        /** Frees the memory that is kept. */
        @Override
        public void close() {
            sum.close();
        }
    }
}
