package io.djltp.internal.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.internal.optimizer.OptimizerState.Share;
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
 *
 * <p>Where the ranks of a group share out an update, each gets the sums of a range of each bucket
 * alone, and the others get the new values from it: a reduce-scatter and an all-gather, which send
 * what an all-reduce sends.
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
         * @param member whose gradient it is
         * @param gradient the gradient, whose elements may be changed, or {@code null} if it is
         *     zero
         * @param share how the ranks share out the update of the shard or replica, the gradient
         *     being that of this rank's share, or {@code null}: it is that of all
         */
        void accept(Member member, @Nullable TensorView gradient, @Nullable Share share);
    }

    /**
     * A gradient, or a part of one.
     *
     * @param parameter the parameter
     * @param value the rank's shard or replica
     * @param group the group over which it is summed, or {@code null}
     * @param part the part of a shard that the ranks of the group hold alike, or {@code null} for
     *     all of it
     * @param sharedOut whether each rank of the group updates a part of it
     */
    record Member(
            Parameter parameter,
            NDArray value,
            @Nullable Communicator group,
            @Nullable SharedPart part,
            boolean sharedOut) {

        /** Returns whether nothing has changed. (Arrays are equal if their elements are.) */
        private static boolean areSame(List<Member> some, List<Member> others) {
            boolean same = some.size() == others.size();
            for (int i = 0; same && i < some.size(); i++) {
                Member one = some.get(i);
                Member other = others.get(i);
                same = one.parameter == other.parameter && one.value == other.value;
                same = same && one.group == other.group && one.sharedOut == other.sharedOut;
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
            return new BucketPlan.Gradient(
                    group, sharedOut, value.getDataType(), value.getDevice(), bytes);
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
                giveOwn(i, consumer);
            } else {
                place.bucket.await();
                place.bucket.give(place.number, consumer);
            }
        }
    }

    /**
     * Waits for the sums, hands out all gradients and frees them: first those that are not summed.
     *
     * @param consumer gets them
     * @param update updates all parameters whose gradients were handed out since it was last called
     */
    void finish(Consumer consumer, Runnable update) {
        for (int i = 0; i < members.size(); i++) {
            if (places.get(i) == null) {
                giveOwn(i, consumer);
            }
        }
        update.run();
        dropGradients();
        // in the order of the tree: an update may be a collective operation itself
        for (Place place : places) {
            if (place != null) {
                place.bucket.await();
                place.bucket.give(place.number, consumer);
                if (place.number == place.bucket.own.size() - 1) {
                    update.run();
                    place.bucket.sendValues();
                }
            }
        }
        buckets.forEach(Bucket::takeValues);
        // after a failure, operations may still use it: it is freed when the ranks have ended
        buckets.forEach(Bucket::release);
    }

    private void giveOwn(int number, Consumer consumer) {
        Member member = members.get(number);
        consumer.accept(member, Autograd.viewGradient(member.value()), null);
    }

    /** Waits for the sums, and forgets them and all gradients. */
    void drop() {
        buckets.forEach(Bucket::await);
        dropGradients();
        buckets.forEach(Bucket::release);
    }

    /** What is on its way is kept by its bucket. */
    private void dropGradients() {
        members.forEach(member -> Autograd.dropGradient(member.value()));
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
        private final Communicator group;
        private final int ranks; // that share the update out, or 1
        private final int rank; // among these
        private final @Nullable FlatGradients kept; // null: one gradient that travels as it is
        private @Nullable FlatGradients sums; // of this step
        private @Nullable FlatGradients values; // what the ranks send each other after the update
        private Work work = Work.DONE;

        Bucket(List<Member> own) {
            this.own = own;
            Member first = own.get(0);
            List<String> names =
                    own.stream()
                            .map(member -> parameters.nameOf(member.parameter()))
                            .distinct()
                            .toList();
            issuer = BucketPlan.describe(names);
            group = Objects.requireNonNull(first.group(), "group");
            ranks = first.sharedOut() ? group.getSize() : 1;
            rank = first.sharedOut() ? group.getRank() : 0;
            kept = own.size() == 1 && first.isContiguous() ? null : flat();
        }

        private FlatGradients flat() {
            List<NDArray> parts = new ArrayList<>();
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                for (Member member : own) {
                    SharedPart part = member.part();
                    parts.add(part == null ? member.value() : part.of(member.value()));
                }
                return new FlatGradients(parts, ranks, rank);
            } finally {
                for (int i = 0; i < parts.size(); i++) {
                    if (own.get(i).part() != null) {
                        parts.get(i).close();
                    }
                }
            }
        }

        void start() {
            release(); // of a step that has failed
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                if (kept == null) {
                    try (NDArray gradient = own.get(0).gradient()) {
                        sums = FlatGradients.over(gradient, ranks, rank);
                    }
                } else {
                    copyTo(kept);
                    sums = kept;
                }
            }
            group.setIssuer(issuer);
            work =
                    ranks == 1
                            ? group.allReduce(sums.getAll(), ReduceOp.SUM)
                            : group.reduceScatter(
                                    sums.getAll(), sums.getOwn(), sums.getShares(), ReduceOp.SUM);
        }

        private void copyTo(FlatGradients flat) {
            List<@Nullable TensorView> gradients = new ArrayList<>();
            List<NDArray> parts = new ArrayList<>();
            try {
                for (Member member : own) {
                    if (member.part() == null) {
                        gradients.add(Autograd.viewGradient(member.value()));
                    } else {
                        NDArray part = member.gradient();
                        parts.add(part);
                        gradients.add(TensorView.of(part));
                    }
                }
                flat.set(gradients);
            } finally {
                parts.forEach(NDArray::close);
            }
            for (Member member : own) {
                if (member.part() == null) {
                    Autograd.dropGradient(member.value()); // its memory is free for what comes next
                }
            }
        }

        void await() {
            work.await();
            work = Work.DONE;
        }

        /** Hands out the sum of a gradient, which is there until {@link #release()}. */
        void give(int number, Consumer consumer) {
            FlatGradients flat = Objects.requireNonNull(sums, "start comes first");
            Share share = ranks == 1 ? null : new Share(group, flat.getCut(number));
            consumer.accept(own.get(number), flat.get(number), share);
        }

        /** Begins to send what this rank has updated; the sums are of no use any more. */
        void sendValues() {
            if (ranks > 1 && kept != null) {
                kept.setOwn(own.stream().map(Member::value).toList());
            }
            if (kept == null) {
                release(); // the memory is free for what comes next
            }
            if (ranks > 1) {
                values = kept != null ? kept : FlatGradients.over(own.get(0).value(), ranks, rank);
                group.setIssuer(issuer);
                work = group.allGather(values.getOwn(), values.getAll(), values.getShares());
            }
        }

        /** Takes what the others have updated. */
        void takeValues() {
            await();
            if (ranks > 1 && kept != null) {
                kept.copyOthers();
            }
        }

        void putBack() {
            await();
            if (kept != null) {
                List<NDArray> gradients = new ArrayList<>();
                try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                    own.forEach(member -> gradients.add(member.gradient()));
                    kept.copyTo(gradients);
                } finally {
                    gradients.forEach(NDArray::close);
                }
            }
            release();
        }

        /** Frees what is not kept. */
        void release() {
            for (FlatGradients each : new FlatGradients[] {sums, values}) {
                if (each != null && each != kept) {
                    each.close();
                }
            }
            sums = null;
            values = null;
        }

        @Override
        public void close() {
            release();
            if (kept != null) {
                kept.close();
            }
        }
    }
}
