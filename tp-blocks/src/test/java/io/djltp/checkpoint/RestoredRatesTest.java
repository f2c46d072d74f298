package io.djltp.checkpoint;

import ai.djl.nn.Parameter;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.LinearTracker;
import ai.djl.training.tracker.PolynomialDecayTracker;
import ai.djl.training.tracker.Tracker;
import ai.djl.training.tracker.WarmUpTracker;

import io.djltp.internal.optimizer.LearningRates;
import io.djltp.internal.optimizer.OptimizerSettings;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** A tracker of DJL needs no state: a new one has the rates of an old one from any update on. */
public class RestoredRatesTest {

    private static final int UPDATES = 40;

    private static Map<String, Supplier<Tracker>> trackers() {
        Map<String, Supplier<Tracker>> trackers = new LinkedHashMap<>();
        trackers.put("fixed", () -> Tracker.fixed(0.1f));
        trackers.put(
                "factor",
                () ->
                        Tracker.factor()
                                .setBaseValue(0.1f)
                                .setFactor(0.7f)
                                .optMinValue(1e-3f)
                                .build());
        trackers.put(
                "multi-factor",
                () ->
                        Tracker.multiFactor()
                                .setBaseValue(0.1f)
                                .setSteps(new int[] {2, 5, 9, 30})
                                .optFactor(0.7f)
                                .build());
        trackers.put(
                "linear",
                () ->
                        LinearTracker.builder()
                                .setBaseValue(0.1f)
                                .optSlope(-0.003f)
                                .optMinValue(0.01f)
                                .build());
        trackers.put(
                "polynomial",
                () ->
                        PolynomialDecayTracker.builder()
                                .setBaseValue(0.1f)
                                .setEndLearningRate(0.01f)
                                .setDecaySteps(25)
                                .optPower(2)
                                .build());
        trackers.put(
                "cosine",
                () ->
                        Tracker.cosine()
                                .setBaseValue(0.1f)
                                .optFinalValue(0.01f)
                                .setMaxUpdates(25)
                                .build());
        trackers.put(
                "cyclical",
                () ->
                        Tracker.cyclical()
                                .optBaseValue(0.01f)
                                .optMaxValue(0.1f)
                                .optStepSizeUp(4)
                                .optStepSizeDown(3)
                                .build());
        for (WarmUpTracker.Mode mode :
                List.of(WarmUpTracker.Mode.LINEAR, WarmUpTracker.Mode.CONSTANT)) {
            trackers.put(
                    "warm-up " + mode,
                    () ->
                            Tracker.warmUp()
                                    .setMainTracker(
                                            Tracker.factor()
                                                    .setBaseValue(0.1f)
                                                    .setFactor(0.7f)
                                                    .build())
                                    .optWarmUpSteps(7)
                                    .optWarmUpBeginValue(0.01f)
                                    .optWarmUpMode(mode)
                                    .build());
        }
        return trackers;
    }

    private static LearningRates rates(Tracker tracker) {
        Optimizer optimizer = Optimizer.sgd().setLearningRateTracker(tracker).build();
        return new LearningRates(OptimizerSettings.of(optimizer), name -> true);
    }

    /** Of several parameters: a tracker that counts its calls would be found out. */
    @Test
    public void ratesGoOnFromAnyUpdate() {
        List<Parameter> parameters = List.of(parameter("a"), parameter("b"), parameter("c"));
        trackers()
                .forEach(
                        (name, tracker) -> {
                            LearningRates whole = rates(tracker.get());
                            for (int update = 1; update <= UPDATES; update++) {
                                Map<String, Integer> counts = whole.getCounts();
                                Map<Parameter, LearningRates.Update> expected =
                                        whole.next(parameters, Parameter::getName);
                                LearningRates resumed = rates(tracker.get());
                                resumed.setCounts(counts);
                                Assert.assertEquals(
                                        resumed.next(parameters, Parameter::getName),
                                        expected,
                                        name + " in update " + update);
                            }
                        });
    }

    private static Parameter parameter(String name) {
        return Parameter.builder().setName(name).setType(Parameter.Type.WEIGHT).build();
    }
}
