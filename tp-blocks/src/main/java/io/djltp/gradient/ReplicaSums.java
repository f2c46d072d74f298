package io.djltp.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.gradient.ReplicaBucket.Member;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.SharedPart;
import io.djltp.rank.ParallelContext;

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
    private final List<ReplicaBucket> buckets = new ArrayList<>(); // in the order of issue

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
        buckets.forEach(ReplicaBucket::start);
        buckets.forEach(ReplicaBucket::finish);
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
            buckets.add(new ReplicaBucket(own, BucketPlan.describe(names)));
        }
    }

    /** Frees the memory of the buckets. */
    @Override
    public void close() {
        buckets.forEach(ReplicaBucket::close);
        buckets.clear();
        members = List.of();
    }
}
