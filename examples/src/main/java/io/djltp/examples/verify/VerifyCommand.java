package io.djltp.examples.verify;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.verify.FormCheck.FormResult;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankPool;
import io.djltp.torch.LibTorch;

import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;

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
                    "--tp must be from 1 to "
                            + ParallelForm.SMALLEST_CUT
                            + ", the length of the smallest axis that is cut here, not "
                            + ranks);
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
}
