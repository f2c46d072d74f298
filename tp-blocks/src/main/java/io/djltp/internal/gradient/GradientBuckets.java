package io.djltp.internal.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.parameters.SharedPart;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.FlatGradients;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;

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
@SuppressWarnings("try") // a scope is used by being open
final class GradientBuckets implements AutoCloseable {

    private final ParallelParameters parameters;
    private List<Member> members = List.of(); // all, in the order of the tree
    private final List<@Nullable Place> places =
            new ArrayList<>(); // of each member, or null: not summed
    private final List<Bucket> buckets = new ArrayList<>(); // in the order of issue

    /**
     * Creates the buckets of a rank.
     *
     * @param parameters the parameters
     */
    GradientBuckets(ParallelParameters parameters) {
        this.parameters = parameters;
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
        void accept(Parameter parameter, NDArray value, @Nullable NDArray gradient);
    }

    /**
     * A gradient, or a part of one.
     *
     * @param parameter the parameter
     * @param value the rank's shard or replica
     * @param group the group over which it is summed, or {@code null}
     * @param part the part of a shard that the ranks of the group hold alike, or {@code null} for
     *     all of it
     */
    record Member(
            Parameter parameter,
            NDArray value,
            @Nullable Communicator group,
            @Nullable SharedPart part) {

        /** Returns whether nothing has changed. (Arrays are equal if their elements are.) */
        private static boolean areSame(List<Member> some, List<Member> others) {
            boolean same = some.size() == others.size();
            for (int i = 0; same && i < some.size(); i++) {
                Member one = some.get(i);
                Member other = others.get(i);
                same = one.parameter == other.parameter && one.value == other.value;
                same = same && one.group == other.group;
                same = same && (one.part == null || one.part.equals(other.part));
            }
            return same;
        }

        private long length(SharedPart of) {
            return value.getShape().get(of.axis());
        }

        private BucketPlan.Gradient planned() {
            long size = value.size();
            size = part == null ? size : size / length(part) * part.place().length();
            long bytes = size * value.getDataType().getNumOfBytes();
            return new BucketPlan.Gradient(group, value.getDataType(), value.getDevice(), bytes);
        }

        private boolean isContiguous() {
            return part == null || part.axis() == 0 || part.place().length() == length(part);
        }

        /** Returns the gradient, or a view of its part, of zeros if there is none. */
        private NDArray gradient() {
            NDArray gradient = Autograd.gradientOrZeros(value);
            if (part == null) {
                return gradient;
            }
            try (gradient) {
                return part.of(gradient);
            }
        }
    }

    private record Place(Bucket bucket, int number) {}

    /**
     * Begins to sum.
     *
     * @param now the gradients, in the order of the block tree
     */
    void start(List<Member> now) {
        if (!Member.areSame(members, now)) {
            close();
            members = now;
            now.forEach(member -> places.add(null));
            List<BucketPlan.Gradient> planned = now.stream().map(Member::planned).toList();
            for (List<Integer> numbers : BucketPlan.fill(planned, BucketPlan.BYTES)) {
                Bucket bucket = new Bucket(numbers.stream().map(now::get).toList());
                buckets.add(bucket);
                for (int i = 0; i < numbers.size(); i++) {
                    places.set(numbers.get(i), new Place(bucket, i));
                }
            }
        }
        buckets.forEach(Bucket::start);
    }

    /**
     * Waits for all sums, and shows all gradients without using them up.
     *
     * @param consumer what looks at them
     */
    void look(Consumer consumer) {
        for (int i = 0; i < members.size(); i++) {
            Place place = places.get(i);
            if (place == null) {
                use(members.get(i), consumer);
            } else {
                place.bucket.await();
                give(members.get(i), place, consumer);
            }
        }
    }

    /**
     * Waits for the sums, hands out all gradients and frees them: first those that are not summed.
     *
     * @param consumer what uses them
     */
    void finish(Consumer consumer) {
        try {
            for (int i = 0; i < members.size(); i++) {
                if (places.get(i) == null) {
                    use(members.get(i), consumer);
                    Autograd.dropGradient(members.get(i).value());
                }
            }
            // in the order of the tree: an update may be a collective operation itself
            for (int i = 0; i < members.size(); i++) {
                Place place = places.get(i);
                if (place != null) {
                    place.bucket.await();
                    give(members.get(i), place, consumer);
                    Autograd.dropGradient(members.get(i).value());
                    place.bucket.releaseAlone(); // its memory is free for what comes next
                }
            }
        } finally {
            buckets.forEach(Bucket::releaseAlone);
        }
    }

    private static void use(Member member, Consumer consumer) {
        try (NDArray gradient = Autograd.gradient(member.value())) {
            consumer.accept(member.parameter(), member.value(), gradient);
        }
    }

    private static void give(Member member, Place place, Consumer consumer) {
        NDArray sum = place.bucket.get(place.number);
        consumer.accept(member.parameter(), member.value(), sum);
    }

    /** Waits for the sums, and puts them into the gradients. */
    void putBack() {
        buckets.forEach(Bucket::putBack);
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
     * Gradients of one type, on one device and of one group: copies in memory that is kept from
     * step to step, or one gradient where it is.
     */
    private final class Bucket implements AutoCloseable {

        private final List<Member> own;
        private final String issuer;
        private final @Nullable FlatGradients flat; // or null: one gradient that travels as it is
        private @Nullable NDArray alone; // while it travels
        private Work work = Work.DONE;

        Bucket(List<Member> own) {
            this.own = own;
            List<String> names =
                    own.stream()
                            .map(member -> parameters.nameOf(member.parameter()))
                            .distinct()
                            .toList();
            issuer = BucketPlan.describe(names);
            flat = own.size() == 1 && own.get(0).isContiguous() ? null : flat(own);
        }

        private static FlatGradients flat(List<Member> members) {
            List<NDArray> parts = new ArrayList<>();
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                for (Member member : members) {
                    SharedPart part = member.part();
                    parts.add(part == null ? member.value() : part.of(member.value()));
                }
                return new FlatGradients(parts);
            } finally {
                for (int i = 0; i < parts.size(); i++) {
                    if (members.get(i).part() != null) {
                        parts.get(i).close();
                    }
                }
            }
        }

        void start() {
            releaseAlone(); // of a step that has failed
            TensorView summed;
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                if (flat == null) {
                    NDArray gradient = own.get(0).gradient();
                    alone = gradient;
                    summed = TensorView.of(gradient);
                } else {
                    for (int i = 0; i < own.size(); i++) {
                        copy(flat, own.get(i), i);
                    }
                    summed = flat.getAll();
                }
            }
            Communicator group = Objects.requireNonNull(own.get(0).group(), "group");
            group.setIssuer(issuer);
            work = group.allReduce(summed, ReduceOp.SUM);
        }

        private static void copy(FlatGradients to, Member member, int number) {
            if (member.part() != null) {
                try (NDArray part = member.gradient()) {
                    to.set(number, part);
                }
                return;
            }
            try (NDArray gradient = Autograd.gradient(member.value())) {
                to.set(number, gradient);
            }
            Autograd.dropGradient(member.value()); // its memory is free for what comes next
        }

        void await() {
            work.await();
            work = Work.DONE;
        }

        /** Returns the sum of a gradient; of one that is alone until {@link #releaseAlone()}. */
        NDArray get(int number) {
            return flat == null ? Objects.requireNonNull(alone) : flat.get(number);
        }

        void putBack() {
            await();
            releaseAlone();
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                for (int i = 0; flat != null && i < own.size(); i++) {
                    try (NDArray gradient = own.get(i).gradient()) {
                        flat.copyTo(i, gradient);
                    }
                }
            }
        }

        void releaseAlone() {
            if (alone != null) {
                alone.close();
                alone = null;
            }
        }

        @Override
        public void close() {
            releaseAlone();
            if (flat != null) {
                flat.close();
            }
        }
    }
}
