package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;
import io.djltp.rank.ParallelContext;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Autograd;
import io.djltp.torch.Checksum;

import java.util.List;

/**
 * Something of which several ranks have a replica.
 *
 * @param parameter a parameter
 * @param axis the axis that is cut, or -1
 * @param segment a segment of that axis, or {@code null}: the whole parameter
 */
@SuppressWarnings("try") // a scope is used by being open
record ReplicatedPart(Parameter parameter, int axis, Segment segment) {

    /** In the place of the checksum of a rank that has no replica. */
    static final long NOT_HELD = Long.MIN_VALUE;

    /** Returns what of a parameter is on several of the ranks. */
    static List<ReplicatedPart> of(ParallelParameters parameters, Parameter parameter, int ranks) {
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
