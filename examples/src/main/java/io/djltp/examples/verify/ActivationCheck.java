package io.djltp.examples.verify;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.core.Linear;

import io.djltp.cut.Cut;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Autograd;

import java.io.PrintStream;
import java.util.Locale;
import java.util.function.Function;

/**
 * The demonstration that an activation commutes with the column split and not with the row split:
 * it may be computed on the slices of an output, and not on the summands of one, because f(a + b)
 * is not f(a) + f(b).
 */
@SuppressWarnings("try") // a scope is used by being open
final class ActivationCheck {

    /** A difference that is no rounding. */
    private static final double CLEARLY_DIFFERENT = 1e-2;

    private final RankPool pool;
    private final NDManager manager;

    ActivationCheck(RankPool pool, NDManager manager) {
        this.pool = pool;
        this.manager = manager;
    }

    /** What was found. */
    static final class Result {
        int ranks;
        double columnDifference;
        double rowDifference;

        boolean holds() {
            return columnDifference <= VerifyCommand.TOLERANCE
                    && (ranks == 1 || rowDifference > CLEARLY_DIFFERENT);
        }

        void print(PrintStream out) {
            out.printf("%nactivation before the ranks' results are put together%n");
            out.printf(
                    Locale.ROOT,
                    "  %-22s differs by %.1e: an activation commutes with the column split%n",
                    "column split",
                    columnDifference);
            out.printf(
                    Locale.ROOT,
                    "  %-22s differs by %.1e: it does not commute with the row split%s%n",
                    "row split",
                    rowDifference,
                    ranks == 1 ? " (with one rank nothing is split)" : "");
        }
    }

    Result run() {
        NDArray x = manager.randomNormal(new Shape(8, ParallelForm.FEATURES));
        NDArray weight = manager.randomNormal(new Shape(ParallelForm.UNITS, ParallelForm.FEATURES));
        NDArray expected = Activation.gelu(linear(x, weight));
        Cut units = ShardingStrategy.rowwise().cut(weight.getShape(), pool.size());
        Cut features = ShardingStrategy.columnwise().cut(weight.getShape(), pool.size());
        NDArray columns =
                onRanks(
                        context -> {
                            NDArray slice = shard(weight, ShardingStrategy.rowwise(), context);
                            NDArray y = Activation.gelu(linear(x, slice));
                            return context.getMappings().gatherFromRegion(y, units);
                        });
        NDArray rows =
                onRanks(
                        context -> {
                            NDArray slice = shard(weight, ShardingStrategy.columnwise(), context);
                            NDArray part = context.getMappings().scatterToRegion(x, features);
                            NDArray y = Activation.gelu(linear(part, slice));
                            return context.getMappings().reduceFromRegion(y);
                        });
        Result result = new Result();
        result.ranks = pool.size();
        result.columnDifference = FormCheck.difference(columns, expected);
        result.rowDifference = FormCheck.difference(rows, expected);
        return result;
    }

    /** Returns what rank 0 computes, without a graph. */
    private NDArray onRanks(Function<ParallelContext, NDArray> part) {
        return pool.run(
                        context -> {
                            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                                return part.apply(context);
                            }
                        })
                .get(0);
    }

    private NDArray shard(NDArray whole, ShardingStrategy strategy, ParallelContext context) {
        return FormCheck.shard(whole, strategy, context, manager);
    }

    private static NDArray linear(NDArray x, NDArray weight) {
        return Linear.linear(x, weight).singletonOrThrow();
    }
}
