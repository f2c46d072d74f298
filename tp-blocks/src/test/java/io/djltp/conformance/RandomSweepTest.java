package io.djltp.conformance;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/**
 * Random networks of cut layers on random meshes are those of plain DJL: the outputs, every
 * gradient (as what one step of SGD takes from the parameters), the losses, and the parameters
 * after three steps. The number of cases of the sweep is {@code -Ddjltp.sweep.cases}, {@code
 * -Ddjltp.sweep.seed} the first of them; of a seed without a number only its own case is run.
 */
public class RandomSweepTest {

    private static final Logger logger = LoggerFactory.getLogger(RandomSweepTest.class);
    private static final int FEW = 40;
    private static final int MOST_FAILURES = 10; // then a sweep ends

    @Test(timeOut = 600_000)
    public void cutNetworksAreThoseOfPlainDjl() {
        check(0, FEW);
    }

    @Test(groups = "sweep", timeOut = 3_600_000)
    public void manyCutNetworksAreThoseOfPlainDjl() {
        Long seed = Long.getLong("djltp.sweep.seed");
        check(
                seed == null ? FEW : seed,
                Integer.getInteger("djltp.sweep.cases", seed == null ? 400 : 1));
    }

    private static void check(long first, int number) {
        SweptComparison comparison = new SweptComparison();
        List<String> failures = new ArrayList<>();
        int cases = 0;
        while (cases < number && failures.size() < MOST_FAILURES) {
            long seed = first + cases++;
            SweptCase drawn = SweptCase.of(seed);
            String name = "-Ddjltp.sweep.seed=" + seed + " " + drawn + ": ";
            try {
                List<String> wrong = comparison.check(drawn);
                if (!wrong.isEmpty()) {
                    logger.info("{}{}", name, wrong); // in a sweep that is ended, too
                    failures.add(name + wrong);
                }
            } catch (RuntimeException | AssertionError e) {
                logger.info("{}", name, e);
                failures.add(name + e);
            }
            if (cases % 20 == 0) {
                report(cases, first, comparison, failures.size());
            }
        }
        report(cases, first, comparison, failures.size());
        Assert.assertTrue(failures.isEmpty(), String.join("\n", failures));
        Assert.assertTrue(
                comparison.rounded() <= comparison.compared() / 50,
                comparison.rounded() + " arrays differ by more than 1e-5");
        Assert.assertTrue(
                comparison.diverged() <= number / 50,
                comparison.diverged() + " trainings diverged");
    }

    private static void report(int cases, long first, SweptComparison comparison, int failures) {
        logger.info(
                "{} cases from seed {}: {} arrays, {} of them compared with the rounding of DJL;"
                        + " {} trainings diverged; largest differences {}; wrong {}",
                cases,
                first,
                comparison.compared(),
                comparison.rounded(),
                comparison.diverged(),
                comparison.largest(),
                failures);
    }
}
