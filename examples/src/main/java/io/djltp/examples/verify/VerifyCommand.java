package io.djltp.examples.verify;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.core.Linear;

import io.djltp.cut.Cut;
import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.verify.FormCheck.FormResult;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.Autograd;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.sharding.ShardingStrategy;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.function.Function;

/** Shows that parallel layers compute what the layers compute that they are cut from. */
@Command(
        name = "verify",
        description =
                "Compares column-parallel, row-parallel and column-activation-row layers on several"
                        + " ranks with the unsharded layers, forward and backward.",
        mixinStandardHelpOptions = true)
public final class VerifyCommand implements Callable<Integer> {

    /**
     * Largest difference that counts as equal, relative to the largest value: a sum of some hundred
     * products in fp32 in another order.
     */
    static final double TOLERANCE = 1e-5;

    @Option(names = "--tp", defaultValue = "2", description = "Number of ranks (${DEFAULT-VALUE}).")
    private int ranks;

    @Option(names = "--seed", defaultValue = "1", description = "Seed (${DEFAULT-VALUE}).")
    private int seed;

    @Option(names = "--json", description = "File for the figures.")
    private Path json;

    private final PrintStream out = System.out;

    /** Creates the command; its options are set by the command line. */
    public VerifyCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        if (ranks < 1 || ranks > ParallelForm.SMALLEST_CUT) {
            throw new BadInputException(
                    "--tp must be from 1 to %s, the length of the smallest axis that"
                            + " is cut here, not %s",
                    ParallelForm.SMALLEST_CUT, ranks);
        }
        JsonFile.check(json);
        LibTorch.load();
        Engine.getInstance().setRandomSeed(seed);
        ParallelConfig config =
                ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(ranks).build();
        Report report = new Report();
        report.ranks = ranks;
        try (RankPool pool = new RankPool(config);
                NDManager manager = NDManager.newBaseManager()) {
            for (ParallelForm form : ParallelForm.values()) {
                FormResult result = new FormCheck(form, pool, manager).run();
                result.print(out);
                report.forms.add(result);
                report.equal &= result.equal;
            }
            report.activation = new ActivationCheck(pool, manager).run();
            report.activation.print(out);
            report.equal &= report.activation.holds();
        }
        out.printf(
                Locale.ROOT,
                "%n%s: differences are relative to the largest value; up to %.0e is rounding%n",
                report.equal ? "EQUAL" : "DIFFERENT",
                TOLERANCE);
        JsonFile.write(json, report);
        return report.equal ? 0 : 1;
    }

    /** What {@code --json} writes. */
    private static final class Report {
        int ranks;
        boolean equal = true;
        List<FormResult> forms = new ArrayList<>();
        ActivationCheck.Result activation;
    }

    /**
     * The demonstration that an activation commutes with the column split and not with the row
     * split: it may be computed on the slices of an output, and not on the summands of one, because
     * f(a + b) is not f(a) + f(b).
     */
    @SuppressWarnings("try") // a scope is used by being open
    private static final class ActivationCheck {

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
            NDArray weight =
                    manager.randomNormal(new Shape(ParallelForm.UNITS, ParallelForm.FEATURES));
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
                                NDArray slice =
                                        shard(weight, ShardingStrategy.columnwise(), context);
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
}
