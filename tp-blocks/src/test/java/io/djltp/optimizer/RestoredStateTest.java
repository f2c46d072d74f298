package io.djltp.optimizer;

import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** Who reads all state and sets it in another trainer goes on there as though nothing had been. */
public class RestoredStateTest {

    private static final int HALF = 3;
    private static final int ROWS = 8;

    /** Rows of 64 bytes: the last bits of a product depend on how its operands are aligned. */
    private static final int WIDTH = 16;

    /** Rates that differ from step to step: the counts of the steps show. */
    private static Tracker rate() {
        return Tracker.multiFactor()
                .setBaseValue(0.1f)
                .setSteps(new int[] {2, 4})
                .optFactor(0.5f)
                .build();
    }

    private enum Rule {
        SGD(() -> Optimizer.sgd().setLearningRateTracker(rate()).build()),
        MOMENTUM(() -> Optimizer.sgd().setLearningRateTracker(rate()).optMomentum(0.9f).build()),
        ADAM(() -> Optimizer.adam().optLearningRateTracker(rate()).build()),
        ADAMW(() -> Optimizer.adamW().optLearningRateTracker(rate()).optBeginNumUpdate(4).build()),
        ADAGRAD(() -> Optimizer.adagrad().optLearningRateTracker(rate()).build()),
        ROWWISE(() -> RowwiseAdagrad.builder().optLearningRateTracker(rate()).build());

        private final Supplier<Optimizer> optimizer;

        Rule(Supplier<Optimizer> optimizer) {
            this.optimizer = optimizer;
        }
    }

    @DataProvider
    public Object[][] cases() {
        List<Object[]> cases = new ArrayList<>();
        for (Rule rule : Rule.values()) {
            for (ParallelMode mode : ParallelMode.values()) {
                cases.add(new Object[] {rule, new TrainerKind(mode, 1 + rule.ordinal() % 2)});
                cases.add(new Object[] {rule, new TrainerKind(mode, 3)});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    /** What a checkpoint has of a rank, copied out of the trainer. */
    private record Saved(List<Map<String, Map<String, NDArray>>> ranks, Map<String, Integer> counts)
            implements Consumer<ParallelTrainer> {

        static Saved of(ParallelTrainer trainer, int ranks, NDManager manager) {
            List<Map<String, Map<String, NDArray>>> states = new ArrayList<>();
            for (int rank = 0; rank < ranks; rank++) {
                OptimizerState state = trainer.getOptimizerState(rank);
                Map<String, Map<String, NDArray>> copies = new HashMap<>();
                for (String name : state.getNames()) {
                    Map<String, NDArray> arrays = new HashMap<>(state.get(name, manager));
                    arrays.replaceAll((kind, array) -> array.duplicate());
                    copies.put(name, arrays);
                }
                states.add(copies);
            }
            return new Saved(states, trainer.getLearningRates().getCounts());
        }

        @Override
        public void accept(ParallelTrainer trainer) {
            for (int rank = 0; rank < ranks.size(); rank++) {
                OptimizerState state = trainer.getOptimizerState(rank);
                ranks.get(rank).forEach(state::set);
                assertEquals(state.getNames(), ranks.get(rank).keySet());
            }
            trainer.getLearningRates().setCounts(counts);
        }
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void goesOnBitForBit(Rule rule, TrainerKind kind) {
        try (NDManager manager = NDManager.newBaseManager();
                Model atOnce = model();
                Model halves = model()) {
            List<Saved> saved = new ArrayList<>();
            train(atOnce, kind, rule, 0, 2 * HALF, t -> {}, t -> {});
            train(halves, kind, rule, 0, HALF, t -> {}, t -> saved.add(save(t, kind, manager)));
            Map<String, Integer> counts = saved.get(0).counts();
            assertEquals(counts.size(), 4);
            int last = HALF + (rule == Rule.ADAMW ? 4 : 0);
            counts.values().forEach(count -> assertEquals((int) count, last));
            train(halves, kind, rule, HALF, HALF, saved.get(0), t -> {});
            for (int i = 0; i < 4; i++) {
                // a new trainer of the same weights: nothing but the state could differ
                assertEquals(values(halves, i), values(atOnce, i), "parameter " + i);
            }
        }
    }

    private static Saved save(ParallelTrainer trainer, TrainerKind kind, NDManager manager) {
        return Saved.of(trainer, kind.ranks(), manager);
    }

    private static float[] values(Model model, int parameter) {
        return model.getBlock().getParameters().valueAt(parameter).getArray().toFloatArray();
    }

    /** A weight with cut columns, one with cut rows, and replicas. */
    private static Model model() {
        Model model = Model.newInstance("net");
        model.setBlock(
                new SequentialBlock()
                        .add(
                                ColumnParallelLinear.builder()
                                        .setUnits(WIDTH)
                                        .optBatchShardedInput(true)
                                        .build())
                        .add(RowParallelLinear.builder().setUnits(WIDTH).build()));
        return model;
    }

    private static void train(
            Model model,
            TrainerKind kind,
            Rule rule,
            int first,
            int steps,
            Consumer<ParallelTrainer> before,
            Consumer<ParallelTrainer> after) {
        Engine.getInstance().setRandomSeed(42);
        DefaultTrainingConfig config = Configs.of(new HalfSquareLoss(), rule.optimizer.get());
        try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, config);
                NDManager manager = NDManager.newBaseManager()) {
            trainer.initialize(new Shape(ROWS, WIDTH));
            before.accept(trainer);
            for (int step = first; step < first + steps; step++) {
                NDArray data = random(manager, step, ROWS, WIDTH).duplicate();
                NDArray labels = random(manager, 1000 + step, ROWS, WIDTH).mul(64);
                backward(trainer, data, labels);
                trainer.step();
            }
            after.accept(trainer);
        }
    }

    private static void train(Rule rule, ParallelMode mode, Consumer<ParallelTrainer> after) {
        try (Model model = model()) {
            train(model, new TrainerKind(mode, 2), rule, 0, 2, t -> {}, after);
        }
    }

    /** One clear error each, and the state stays. */
    @Test(timeOut = 60_000)
    public void whatDoesNotFitIsRefused() {
        train(Rule.ADAM, ParallelMode.TENSOR, RestoredStateTest::assertRefused);
        train(
                Rule.SGD,
                ParallelMode.TENSOR,
                trainer -> {
                    try (NDManager manager = NDManager.newBaseManager()) {
                        assertRefused(
                                trainer,
                                Map.of("momentum", manager.zeros(new Shape(8, 16))),
                                "The optimizer keeps no state of parameter"
                                        + " 01ColumnParallelLinear_weight, but \\[momentum\\] is to"
                                        + " be set: .*");
                    }
                });
    }

    private static void assertRefused(ParallelTrainer trainer) {
        try (NDManager manager = NDManager.newBaseManager()) {
            Shape shard = new Shape(8, 16); // of [16, 16], over two ranks
            Map<String, NDArray> state = state(trainer, manager);
            assertEquals(new TreeSet<>(state.keySet()).toString(), "[mean, variance]");
            float[] before = state.get("mean").toFloatArray();
            assertRefused(
                    trainer,
                    Map.of("mean", manager.zeros(shard)),
                    "The optimizer keeps \\[mean, variance\\] of parameter"
                            + " 01ColumnParallelLinear_weight, but \\[mean\\] is to be set: it is"
                            + " the state of another optimizer");
            assertRefused(
                    trainer,
                    Map.of(
                            "mean",
                            manager.zeros(shard),
                            "variance",
                            manager.zeros(new Shape(16, 16))),
                    "The state variance of parameter 01ColumnParallelLinear_weight has the shape"
                            + " \\(8, 16\\) on this rank, but \\(16, 16\\) is to be set: .*");
            NDArray wide = manager.zeros(shard, DataType.FLOAT64);
            assertRefused(
                    trainer,
                    Map.of("mean", wide, "variance", wide),
                    "The state of parameter 01ColumnParallelLinear_weight is kept in float32, .*"
                            + " is in float64 and the parameter in float32");
            assertEquals(state(trainer, manager).get("mean").toFloatArray(), before);
            OptimizerState optimizer = trainer.getOptimizerState(0);
            String unknown =
                    "The ranks have no parameter weight: the names are those of"
                            + " block.getParameters(), after trainer.initialize(...)";
            assertEquals(refusal(() -> optimizer.set("weight", state)), unknown);
            assertEquals(refusal(() -> optimizer.get("weight", manager)), unknown);
            assertEquals(refusal(() -> optimizer.free("weight")), unknown);
            LearningRates rates = trainer.getLearningRates();
            Map<String, Integer> counts = rates.getCounts();
            assertTrue(
                    refusal(() -> rates.setCounts(Map.of("weight", 3)))
                            .startsWith("The ranks have no parameter weight: "));
            String bias = "01ColumnParallelLinear_bias";
            assertEquals(
                    refusal(() -> rates.setCounts(Map.of(bias, 0))),
                    "The number of the last update of parameter "
                            + bias
                            + " must be 1 or more, not 0");
            assertEquals(rates.getCounts(), counts);
        }
    }

    private static Map<String, NDArray> state(ParallelTrainer trainer, NDManager manager) {
        return trainer.getOptimizerState(0).get("01ColumnParallelLinear_weight", manager);
    }

    private static void assertRefused(
            ParallelTrainer trainer, Map<String, NDArray> state, String message) {
        OptimizerState optimizer = trainer.getOptimizerState(0);
        String refusal = refusal(() -> optimizer.set("01ColumnParallelLinear_weight", state));
        assertTrue(refusal.matches(message), refusal);
    }

    private static String refusal(Assert.ThrowingRunnable call) {
        return expectThrows(IllegalArgumentException.class, call).getMessage();
    }

    /** Setting nothing is what a parameter has before its first update. */
    @Test(timeOut = 60_000)
    public void nothingIsTheBeginning() {
        train(
                Rule.MOMENTUM,
                ParallelMode.DATA,
                trainer -> {
                    OptimizerState state = trainer.getOptimizerState(1);
                    String name = "02RowParallelLinear_bias";
                    assertTrue(state.getNames().contains(name));
                    state.set(name, Map.of());
                    try (NDManager manager = NDManager.newBaseManager()) {
                        assertEquals(state.get(name, manager), Map.of());
                    }
                });
    }
}
