package io.djltp.internal.optimizer;

import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_4;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import static org.testng.Assert.assertEquals;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.FixedPerVarTracker;
import ai.djl.training.tracker.ParameterTracker;
import ai.djl.training.tracker.Tracker;

import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;

/** Trackers of learning rates are asked what DJL's trainer asks them, once, whatever the ranks. */
public class LearningRatesTest {

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel(1, 2, 3);
    }

    /** Frozen from the start, frozen in between, and frozen for good. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void asksAsDjlDoes(TrainerKind kind) {
        for (int first : new int[] {0, 10}) {
            assertEquals(calls(kind, first), calls(PLAIN, first));
        }
    }

    private static List<String> calls(TrainerKind kind, int first) {
        Block block = Training.inOrder(LearningRatesTest::network);
        List<String> ids =
                block.getParameters().values().stream()
                        .map(Parameter::getId)
                        .collect(Collectors.toList());
        List<String> calls = Collections.synchronizedList(new ArrayList<>());
        ParameterTracker tracker =
                (id, number) -> {
                    calls.add("parameter " + ids.indexOf(id) + " number " + number);
                    return 0.1f;
                };
        Sgd optimizer =
                Optimizer.sgd().setLearningRateTracker(tracker).optBeginNumUpdate(first).build();
        Training.run(
                kind,
                block,
                optimizer,
                9,
                (trainer, step) -> {
                    calls.add("step " + step);
                    freeze(block, 0, step < 3);
                    freeze(block, 2, step >= 2 && step < 6);
                    freeze(block, 3, step >= 5);
                });
        return calls;
    }

    private static void freeze(Block block, int parameter, boolean frozen) {
        block.getParameters().valueAt(parameter).freeze(frozen);
    }

    /** DJL's recipe for fine-tuning: a smaller rate for what was trained before. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void ratesOfSingleParameters(TrainerKind kind) {
        fineTuned(kind).assertSame(fineTuned(PLAIN), 5e-6);
    }

    private static TrainingRun fineTuned(TrainerKind kind) {
        Block block = network();
        FixedPerVarTracker.Builder rates = FixedPerVarTracker.builder().setDefaultValue(0.05f);
        rates.put(block.getParameters().valueAt(0).getId(), 0.001f);
        rates.put(block.getParameters().valueAt(3).getId(), 0.2f);
        Optimizer optimizer = Optimizer.adam().optLearningRateTracker(rates.build()).build();
        return Training.run(kind, block, optimizer, 5);
    }

    /** Ranks that share an optimizer applied the factor of a schedule twice now and then. */
    @Test(timeOut = 60_000)
    public void aScheduleThatCountsItsFactors() {
        TrainingRun expected = scheduled(PLAIN);
        for (int run = 0; run < 10; run++) {
            scheduled(DATA_4).assertSame(expected, 5e-6);
        }
    }

    private static TrainingRun scheduled(TrainerKind kind) {
        Tracker tracker =
                Tracker.multiFactor()
                        .setBaseValue(0.1f)
                        .setSteps(new int[] {1, 2, 3, 4, 5, 6, 7, 8})
                        .optFactor(0.7f)
                        .build();
        Block block = Training.inOrder(LearningRatesTest::network);
        Optimizer optimizer = Optimizer.sgd().setLearningRateTracker(tracker).build();
        return Training.run(
                kind,
                block,
                optimizer,
                10,
                (trainer, step) -> block.getParameters().valueAt(2).freeze(step % 3 == 1));
    }

    @Test(timeOut = 60_000)
    public void aRateThatIsNotANumber() {
        ParameterTracker rate = (id, number) -> number < 3 ? 0.1f : Float.POSITIVE_INFINITY;
        Optimizer optimizer = Optimizer.adam().optLearningRateTracker(rate).build();
        assertEquals(
                throwsArgument(() -> Training.run(TENSOR_2, network(), optimizer, 5)),
                "The learning rate of 01Linear_weight in step 3 is Infinity; no parameter has been"
                        + " changed in this step");
    }

    /** The step that is tried again has the number of the one that threw. */
    @Test
    public void aStepThatThrowsIsNotCounted() {
        Block block = network();
        List<Parameter> parameters = block.getParameters().values();
        Set<String> bad = new HashSet<>();
        List<Integer> numbers = new ArrayList<>();
        ParameterTracker tracker =
                (id, number) -> {
                    numbers.add(number);
                    return bad.contains(id) ? Float.NaN : 0.1f;
                };
        LearningRates rates =
                new LearningRates(
                        OptimizerSettings.of(
                                Optimizer.adam().optLearningRateTracker(tracker).build()),
                        name -> true);
        rates.next(parameters, Parameter::getId);
        var counts = rates.getCounts();
        bad.add(parameters.get(2).getId());
        throwsArgument(() -> rates.next(parameters, Parameter::getId));
        assertEquals(rates.getCounts(), counts);
        bad.clear();
        rates.next(parameters, Parameter::getId);
        assertEquals(numbers, List.of(1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2));
    }

    private static Block network() {
        return sequence(linear(5), tanh(), gathered(Training.UNITS));
    }
}
