package io.djltp.internal.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.update.FlatGradients;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;

/**
 * Sums the gradients of a rank's parameters over the ranks that have summands of them, many in one
 * operation, as {@link BucketPlan} says. A gradient that is larger than a bucket, or in host memory
 * 2 MiB or more, has an operation for itself and is not copied. All are on their way before the
 * first is waited for.
 *
 * <p>Which gradients are in a bucket follows from the parameters and not from the gradients that
 * are there, so that all ranks of a group issue the same operations in the same order. Buckets and
 * their memory are kept until other parameters are trained, or summed over other groups.
 */
final class GradientBuckets implements AutoCloseable {

    private final ParallelParameters parameters;
    private final GradientGroups groups;
    private final long limit;
    private List<Member> members = List.of(); // all, in the order of the tree
    private final List<Place> places = new ArrayList<>(); // of each member, or null: not summed
    private final List<Bucket> buckets = new ArrayList<>(); // in the order of issue

    /**
     * Creates the buckets of a rank.
     *
     * @param parameters the parameters
     * @param groups over which ranks gradients are summed
     * @param limit the bytes of a bucket; a larger gradient has one for itself
     */
    GradientBuckets(ParallelParameters parameters, GradientGroups groups, long limit) {
        this.parameters = parameters;
        this.groups = groups;
        this.limit = limit;
    }

    /** What is done with a gradient when it is summed. */
    interface Consumer {

        /**
         * Uses a gradient.
         *
         * @param parameter the parameter
         * @param value the rank's shard or replica
         * @param gradient its gradient, whose elements may be changed, or {@code null} if it is
         *     zero
         */
        void accept(Parameter parameter, NDArray value, NDArray gradient);
    }

    /**
     * A parameter of the bucket.
     *
     * @param parameter the parameter
     * @param value the rank's shard or replica
     * @param group the group over which its gradient is summed, or {@code null}
     */
    private record Member(Parameter parameter, NDArray value, Communicator group) {

        /** Returns whether nothing has changed. (Arrays are equal if their elements are.) */
        boolean isSame(Member other) {
            return parameter == other.parameter && value == other.value && group == other.group;
        }

        /** Returns the bytes of the gradient. */
        long bytes() {
            return value.size() * value.getDataType().getNumOfBytes();
        }
    }

    private record Place(Bucket bucket, int number) {}

    /**
     * Begins to sum.
     *
     * @param context the rank
     * @param trained the parameters, in the order of the block tree
     */
    void start(ParallelContext context, Collection<Parameter> trained) {
        List<Member> now = new ArrayList<>();
        for (Parameter parameter : trained) {
            NDArray value = parameters.getStore(context).getHeld(parameter);
            now.add(new Member(parameter, value, groups.of(context, parameter)));
        }
        if (!BucketPlan.isFor(members, now, Member::isSame)) {
            close();
            plan(now);
        }
        buckets.forEach(Bucket::start);
    }

    /**
     * Waits for all sums, and shows all gradients without using them up.
     *
     * @param consumer what looks at them
     */
    void look(Consumer consumer) {
        for (int i = 0; i < places.size(); i++) {
            Member member = members.get(i);
            Place place = places.get(i);
            if (place == null) {
                try (NDArray gradient = Autograd.gradient(member.value())) {
                    consumer.accept(member.parameter(), member.value(), gradient);
                }
            } else {
                place.bucket.await();
                NDArray gradient = place.bucket.get(place.number);
                consumer.accept(member.parameter(), member.value(), gradient);
            }
        }
    }

    /**
     * Hands all gradients out: first those that are not summed, while others travel, then the sums.
     * Uses the gradients up.
     *
     * @param consumer what uses them
     */
    void finish(Consumer consumer) {
        try {
            for (int i = 0; i < places.size(); i++) {
                if (places.get(i) == null) {
                    Member member = members.get(i);
                    try (NDArray gradient = Autograd.gradient(member.value())) {
                        consumer.accept(member.parameter(), member.value(), gradient);
                    }
                    Autograd.dropGradient(member.value());
                }
            }
            // in the order of the tree: an update may be a collective operation itself
            for (int i = 0; i < places.size(); i++) {
                if (places.get(i) != null) {
                    handOut(members.get(i), places.get(i), consumer);
                }
            }
        } finally {
            buckets.forEach(Bucket::releaseAlone);
        }
    }

    private static void handOut(Member member, Place place, Consumer consumer) {
        place.bucket.await();
        consumer.accept(member.parameter(), member.value(), place.bucket.get(place.number));
        Autograd.dropGradient(member.value());
        place.bucket.releaseAlone(); // its memory is free for what comes next
    }

    private void plan(List<Member> all) {
        members = all;
        all.forEach(member -> places.add(null));
        List<BucketPlan.Gradient> gradients = all.stream().map(GradientBuckets::gradient).toList();
        BucketPlan.fill(gradients, limit).forEach(this::make);
    }

    private static BucketPlan.Gradient gradient(Member member) {
        NDArray value = member.value();
        return new BucketPlan.Gradient(
                member.group(), value.getDataType(), value.getDevice(), member.bytes());
    }

    private void make(List<Integer> numbers) {
        List<Member> own = numbers.stream().map(members::get).toList();
        List<String> names =
                own.stream().map(member -> parameters.nameOf(member.parameter())).toList();
        Bucket bucket = new Bucket(own, own.get(0).group(), BucketPlan.describe(names));
        buckets.add(bucket);
        for (int i = 0; i < own.size(); i++) {
            places.set(numbers.get(i), new Place(bucket, i));
        }
    }

    /** Frees the memory of the buckets. */
    @Override
    public void close() {
        buckets.forEach(Bucket::close);
        buckets.clear();
        places.clear();
        members = List.of();
    }

    /**
     * Gradients of a rank that are summed over other ranks by one all-reduce: of one type, on one
     * device, over one group. Several are copied into memory that the bucket keeps from step to
     * step; a gradient that is alone stays where it is.
     */
    private static final class Bucket implements AutoCloseable {

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
        Bucket(List<Member> members, Communicator group, String issuer) {
            this.members = members;
            this.group = group;
            this.issuer = issuer;
            sum =
                    new BucketSum(
                            members.size() == 1
                                    ? null
                                    : new FlatGradients(
                                            members.stream().map(Member::value).toList()));
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

        /**
         * Returns the sum of a member's gradients, which stays open until {@link #releaseAlone()}.
         */
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
}
