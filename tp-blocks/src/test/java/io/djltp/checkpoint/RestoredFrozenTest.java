package io.djltp.checkpoint;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import io.djltp.rank.ParallelMode;
import io.djltp.testing.Blocks;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Consumer;

/** What is frozen is what was at the checkpoint, and who has frozen something else is told. */
public class RestoredFrozenTest extends TestFolder {

    private static final Consumer<Block> NOTHING = network -> {};
    private static final Consumer<Block> BIASES = network -> freeze(network, "_bias");
    private static final Consumer<Block> BODY = network -> freeze(network, "01Linear_");

    private static final Set<String> BIAS_NAMES =
            Set.of("01Linear_bias", "02ColumnParallelLinear_bias");

    private Map<String, List<Float>> before; // the last steps of a run
    private Map<String, List<Float>> after;

    private static void freeze(Block network, String part) {
        for (Pair<String, Parameter> named : network.getParameters()) {
            named.getValue().freeze(named.getKey().contains(part));
        }
    }

    /** Frozen before the resume: trained all the same, and said. */
    @Test(timeOut = 60_000)
    public void whatWasTrainedIsTrained() throws Exception {
        run(1, NOTHING, NOTHING);
        String warning = run(2, BIASES, NOTHING);
        Refusals.assertContains(
                warning,
                "What was frozen before the checkpoint was restored is trained from here"
                        + " on, as it was when the checkpoint was taken: 01Linear_bias,"
                        + " 02ColumnParallelLinear_bias. To go on");
        Assert.assertFalse(warning.contains("What was trained before"), warning);
        Assert.assertEquals(unchanged(), Set.of());
    }

    @Test(timeOut = 60_000)
    public void whatWasFrozenIsFrozen() throws Exception {
        run(1, BIASES, NOTHING);
        Assert.assertEquals(unchanged(), BIAS_NAMES);
        String warning = run(2, BODY, NOTHING);
        Refusals.assertContains(
                warning,
                "What was frozen before the checkpoint was restored is trained",
                " taken: 01Linear_weight. To go on",
                "What was trained before the checkpoint was restored is frozen",
                " taken: 02ColumnParallelLinear_bias. To go on");
        Assert.assertEquals(unchanged(), BIAS_NAMES);
    }

    /** The same as at the checkpoint, or after the resume: nothing to be said. */
    @Test(timeOut = 60_000)
    public void whatIsFrozenAfterwardsStaysFrozen() throws Exception {
        run(1, BIASES, NOTHING);
        String warning = run(2, BIASES, BODY);
        Assert.assertFalse(warning.contains("before the checkpoint was restored"), warning);
        Assert.assertEquals(unchanged(), Set.of("01Linear_weight", "01Linear_bias"));
    }

    /** Trains until the end of an epoch of two steps, and returns the warnings. */
    private String run(int epochs, Consumer<Block> beforeResume, Consumer<Block> afterResume) {
        return Refusals.logged(() -> train(epochs, beforeResume, afterResume));
    }

    private void train(int epochs, Consumer<Block> beforeResume, Consumer<Block> afterResume)
            throws Exception {
        new ListenedTraining(folder)
                .of(ParallelMode.MIXED, () -> Blocks.sequence(Blocks.linear(6), Blocks.head(3)))
                .run(
                        (trainer, checkpoints, data) -> {
                            Block network = trainer.getModel().getBlock();
                            beforeResume.accept(network);
                            Assert.assertEquals(checkpoints.resume(trainer), epochs > 1);
                            afterResume.accept(network);
                            before = ListenedTraining.held(trainer, 0);
                            checkpoints.fit(trainer, epochs, data, null);
                            after = ListenedTraining.held(trainer, 0);
                        });
    }

    private Set<String> unchanged() {
        Set<String> same = new TreeSet<>();
        before.forEach(
                (name, values) -> {
                    if (values.equals(after.get(name))) {
                        same.add(name);
                    }
                });
        return same;
    }
}
