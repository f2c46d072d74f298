package io.djltp.internal.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.collective.CollectiveException;
import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.collective.GatheredNumbers;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.Checksum;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Compares the replicas of parameters, and of parts that several ranks have of those that are cut:
 * every rank computes a checksum of each, and all ranks see all of them. Replicas are updated by
 * each rank on its own, so that an operation that is not deterministic, a lost update or a broken
 * memory goes unseen otherwise.
 *
 * <p>The bits of a NaN depend on how a rank's vector instructions divide its shard. Checksums that
 * differ are therefore computed once more, with all NaN alike.
 */
public final class DriftCheck {

    private static final String IN_STEP = "the comparison of replicas";
    private static final String AT_CLOSE = CollectiveCall.CLOSE + ", comparing replicas";

    private final RankPool ranks;
    private final ParallelParameters parameters;
    private long checked;

    /**
     * Creates the check.
     *
     * @param ranks the ranks
     * @param parameters what the ranks hold
     */
    public DriftCheck(RankPool ranks, ParallelParameters parameters) {
        this.ranks = ranks;
        this.parameters = parameters;
    }

    /**
     * Returns whether a step has been made since the replicas were compared.
     *
     * @param step the number of steps done
     * @return whether they may differ
     */
    public boolean isDue(long step) {
        return step > checked;
    }

    /**
     * Takes the replicas as they are for compared.
     *
     * @param step the number of steps that they come from
     */
    public void restart(long step) {
        checked = step;
    }

    /**
     * Compares the replicas on all ranks. All processes call it.
     *
     * @param step the number of steps done, for the error
     */
    public void run(long step) {
        run(step, IN_STEP);
    }

    /**
     * Compares the replicas on all ranks, before the model is saved. All processes call it.
     *
     * @param step the number of steps done, for the error
     */
    public void runBeforeSave(long step) {
        run(step, WeightSource.SAVE);
    }

    private void run(long step, String issuer) {
        checked = step;
        List<ReplicatedPart> replicated = replicated();
        if (ranks.getWorldSize() > 1 && !replicated.isEmpty()) {
            ranks.runAll(
                    context -> {
                        compare(checksums(context, replicated, issuer), replicated, step);
                    });
        }
    }

    /**
     * Compares checksums that were taken before. If the replicas have drifted apart, the job ends.
     *
     * @param step the number of steps done, for the error
     * @param all the checksums of all ranks
     */
    public void check(long step, long... all) {
        List<ReplicatedPart> replicated = replicated();
        ranks.runAll(
                context -> {
                    compare(all, replicated, step);
                });
    }

    /**
     * Returns the checksums of the replicas of all ranks, for {@link #check}, when the trainer is
     * closed. All processes call it.
     *
     * @return the checksums of all ranks, in their order
     */
    public long[] allChecksums() {
        List<ReplicatedPart> replicated = replicated();
        return replicated.isEmpty()
                ? new long[0]
                : ranks.run(context -> checksums(context, replicated, AT_CLOSE)).get(0);
    }

    private List<ReplicatedPart> replicated() {
        List<ReplicatedPart> replicated = new ArrayList<>();
        for (Parameter parameter : parameters.getTrained()) {
            replicated.addAll(ReplicatedPart.of(parameters, parameter, ranks.getWorldSize()));
        }
        return replicated;
    }

    private long[] checksums(
            ParallelContext context, List<ReplicatedPart> replicated, String issuer) {
        long[] all = gather(context, replicated, issuer, false);
        return isDifferent(all, replicated.size())
                ? gather(context, replicated, issuer, true)
                : all;
    }

    private long[] gather(
            ParallelContext context,
            List<ReplicatedPart> replicated,
            String issuer,
            boolean oneNaN) {
        long[] own = new long[replicated.size()];
        Arrays.setAll(own, i -> replicated.get(i).checksum(parameters, context, oneNaN));
        NDManager manager = parameters.getStore(context).getManager();
        return GatheredNumbers.of(context.getWorld(), manager, own, issuer);
    }

    private static boolean isDifferent(long[] all, int parts) {
        return IntStream.range(0, all.length).anyMatch(at -> all[at] != all[first(all, parts, at)]);
    }

    /** Returns where the first rank that has a part has its checksum; the place of one without. */
    private static int first(long[] all, int parts, int at) {
        int first = at % parts;
        while (first < at && all[first] == ReplicatedPart.NOT_HELD) {
            first += parts;
        }
        return all[at] == ReplicatedPart.NOT_HELD ? at : first;
    }

    private void compare(long[] all, List<ReplicatedPart> replicated, long step) {
        int parts = replicated.size();
        for (int part = 0; part < parts; part++) {
            for (int at = part; at < all.length; at += parts) {
                int first = first(all, parts, at);
                if (all[at] != all[first]) {
                    throw drifted(replicated.get(part), step, at / parts, first / parts);
                }
            }
        }
    }

    private CollectiveException drifted(ReplicatedPart part, long step, int rank, int first) {
        return new CollectiveException(
                ("after step %s rank %s has other values of %s than rank %s: the replicas"
                                + " have drifted apart. Was a weight or a gradient changed"
                                + " outside of trainer.step(), such as by another trainer of the"
                                + " model? What the model shows is that of rank %s. Do all"
                                + " processes iterate the same batches, change parameters alike,"
                                + " and give their optimizers the same settings and learning"
                                + " rates?")
                        .formatted(step, rank, part.describe(parameters), first, first));
    }

    /**
     * Something of which several ranks have a replica.
     *
     * @param parameter a parameter
     * @param axis the axis that is cut, or -1
     * @param segment a segment of that axis, or {@code null}: the whole parameter
     */
    @SuppressWarnings("try") // a scope is used by being open
    private record ReplicatedPart(Parameter parameter, int axis, @Nullable Segment segment) {

        /** In the place of the checksum of a rank that has no replica. */
        static final long NOT_HELD = Long.MIN_VALUE;

        /** Returns what of a parameter is on several of the ranks. */
        static List<ReplicatedPart> of(
                ParallelParameters parameters, Parameter parameter, int ranks) {
            ShardingStrategy strategy = parameters.getStrategy(parameter);
            if (strategy == null) {
                return List.of(new ReplicatedPart(parameter, -1, null));
            }
            int size = parameters.getShards().size();
            Shape shape = parameter.getArray().getShape();
            return strategy.cut(shape, size).getSegments().stream()
                    .filter(segment -> segment.isReplicated() || ranks > size)
                    .map(segment -> new ReplicatedPart(parameter, strategy.axis(shape), segment))
                    .toList();
        }

        /**
         * Returns the checksum of a rank's replica.
         *
         * @param oneNaN whether all NaN are taken for the same
         */
        long checksum(ParallelParameters parameters, ParallelContext context, boolean oneNaN) {
            NDArray value = parameters.getStore(context).getHeld(parameter);
            long sum = segment == null ? checksum(value, oneNaN) : 0;
            if (segment != null) {
                long place = segment.getPlace(context.getTensorGroup().getRank());
                if (place < 0) {
                    return NOT_HELD;
                }
                ShardRange range = new ShardRange(place, segment.range().length());
                try (Autograd.GradMode mode = Autograd.gradMode(false);
                        NDArray part = SharedPart.range(value, axis, range)) {
                    sum = checksum(part, oneNaN);
                }
            }
            return sum == NOT_HELD ? NOT_HELD + 1 : sum;
        }

        private static long checksum(NDArray array, boolean oneNaN) {
            return oneNaN ? Checksum.withOneNaN(array) : Checksum.of(array);
        }

        /** Returns what it is, for errors. */
        String describe(ParallelParameters parameters) {
            String text = parameters.nameOf(parameter) + " " + parameter.getShape();
            return segment == null
                    ? text
                    : text
                            + ", "
                            + segment.range().start()
                            + " to "
                            + segment.range().end()
                            + " of axis "
                            + axis
                            + ",";
        }
    }
}
