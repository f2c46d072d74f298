package io.djltp.internal.gradient;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;
import io.djltp.internal.optimizer.OptimizerState;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.SquareSum;
import io.djltp.sharding.ShardingStrategy;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.ArrayList;
import java.util.List;

/**
 * The norm of all gradients of a step over all ranks, and how they are limited by it.
 *
 * <pre>
 *   norm = sqrt( sum over all parameters, each element once, of g^2 )
 *   g    = g * min(1, limit / (norm + 1e-6))
 * </pre>
 *
 * <p>That is {@code torch.nn.utils.clip_grad_norm_} of the unsharded network (Pascanu et al., 2013,
 * <a href="https://arxiv.org/abs/1211.5063">arXiv:1211.5063</a>), as there also where the norm is
 * not finite: it makes all gradients NaN, or, if it is infinite, those that are finite zero.
 *
 * <p>Each rank adds the squares of what it counts in float64: of a shard what no rank before it
 * has, and of what several ranks have the same replica of, a part each. The sums are added by one
 * all-reduce of one number, and one number goes to the host.
 */
final class GlobalNorm {

    private static final Logger logger = LoggerFactory.getLogger(GlobalNorm.class);

    private static final double EPSILON = 1e-6; // that of PyTorch

    private final ParallelParameters parameters;
    private final float limit;
    private volatile double norm = Double.NaN; // of the first rank of the process

    /**
     * Creates the norm of a training.
     *
     * @param parameters what the ranks hold
     * @param limit the largest norm
     */
    GlobalNorm(ParallelParameters parameters, float limit) {
        this.parameters = parameters;
        this.limit = limit;
    }

    /** Returns the norm of the last step before it was limited, or NaN if there was none. */
    double getLast() {
        return norm;
    }

    /**
     * Computes the norm. All ranks call it.
     *
     * @param context the rank
     * @param gradients the gradients, whose sums over ranks were begun
     * @return what each gradient has to be multiplied with, the same on all ranks
     */
    float factor(ParallelContext context, GradientBuckets gradients) {
        double total = measure(context, gradients, 1, true);
        if (context.getLocalIndex() == 0 && !Double.isFinite(total)) {
            logger.warn("The norm of the gradients is {}", total);
        }
        return factor(total);
    }

    /** Returns what gradients of a norm have to be multiplied with. */
    float factor(double total) {
        double factor = limit / (total + EPSILON);
        return factor > 1 ? 1 : (float) factor; // NaN stays NaN
    }

    /**
     * Computes the norm of the gradients of a loss that was scaled. All ranks call it.
     *
     * @param context the rank
     * @param gradients the gradients, whose sums over ranks were begun
     * @param scale what the loss was multiplied with
     * @param finite whether all gradients of the rank are finite that are not among these
     * @return the norm without the scale, the same on all ranks: finite if all gradients are
     */
    double measure(
            ParallelContext context, GradientBuckets gradients, float scale, boolean finite) {
        double total;
        try (SquareSum squares =
                new SquareSum(parameters.getStore(context).getManager(), context.getDevice())) {
            gradients.look(
                    (member, gradient, share) -> {
                        if (gradient != null && share != null) {
                            addPart(context, squares, member.parameter(), gradient, share);
                        } else if (gradient != null) {
                            add(context, squares, member.parameter(), gradient);
                        }
                    });
            if (!finite) {
                squares.get().addi(Double.NaN);
            }
            if (context.getSize() > 1) {
                context.getWorld().setIssuer("the norm of the gradients");
                context.getWorld().allReduce(squares.get(), ReduceOp.SUM);
            }
            total = Math.sqrt(HostReads.doubles(squares.get())[0]) / scale;
        }
        if (context.getLocalIndex() == 0) {
            norm = total;
        }
        return total;
    }

    /**
     * Adds this rank's part of a gradient. Of what ranks of other groups have too, each group
     * counts other elements: their parts may differ.
     */
    private void addPart(
            ParallelContext context,
            SquareSum squares,
            Parameter parameter,
            TensorView gradient,
            OptimizerState.Share share) {
        boolean replicated = parameters.getStrategy(parameter) == null;
        int groups = replicated ? context.getSize() / share.group().getSize() : 1;
        boolean alongData = share.group() == context.getDataGroup();
        Communicator across = alongData ? context.getTensorGroup() : context.getDataGroup();
        ShardRange counted =
                ShardRange.balanced(
                        share.cut().getLength(), groups == 1 ? 0 : across.getRank(), groups);
        ShardRange own = share.range();
        long start = Math.max(own.start(), counted.start());
        long length = Math.min(own.end(), counted.end()) - start;
        if (length > 0) {
            squares.add(gradient, 0, List.of(new ShardRange(start - own.start(), length)), 0, 1);
        }
    }

    private void add(
            ParallelContext context, SquareSum squares, Parameter parameter, TensorView gradient) {
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        int ranks = context.getTensorGroup().getSize();
        if (strategy == null || ranks == 1) {
            Shape shape = gradient.getShape();
            long length = shape.dimension() == 0 ? 1 : shape.get(0);
            List<ShardRange> all = List.of(new ShardRange(0, length));
            squares.add(gradient, 0, all, context.getRank(), context.getSize());
            return;
        }
        Shape whole = parameter.getArray().getShape();
        int axis = strategy.axis(whole);
        int rank = context.getTensorGroup().getRank();
        List<ShardRange> own = counted(strategy.cut(whole, ranks), rank);
        if (context.getMesh().isOverlaid()) {
            squares.add(gradient, axis, own, 0, 1);
        } else { // the ranks along the axis data have the same shard
            int replicas = context.getDataGroup().getSize();
            squares.add(gradient, axis, own, context.getDataGroup().getRank(), replicas);
        }
    }

    /** Returns where in its shard a rank has what no rank before it has. */
    private static List<ShardRange> counted(Cut cut, int rank) {
        List<ShardRange> places = new ArrayList<>();
        for (Segment segment : cut.getSegments()) {
            if (segment.getFirstRank() == rank) {
                places.add(new ShardRange(segment.getPlace(rank), segment.range().length()));
            }
        }
        return places;
    }
}
