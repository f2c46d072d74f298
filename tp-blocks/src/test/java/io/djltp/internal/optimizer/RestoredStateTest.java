package io.djltp.internal.optimizer;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.steps;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** Who reads all state and sets it in another trainer goes on there as though nothing had been. */
public class RestoredStateTest {

    private static final int HALF = 3;
    private static final Shape INPUT = new Shape(8, 16);
    private static final Network.Batches BATCHES =
            (manager, step) ->
                    new NDList[] {
                        new NDList(random(manager, step, 8, 16).duplicate()),
                        new NDList(random(manager, 1000 + step, 8, 16).mul(64))
                    };

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
            for (TrainerKind kind : TrainerKind.all(1 + rule.ordinal() % 2, 3)) {
                cases.add(new Object[] {rule, kind});
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
        model.setBlock(sequence(head(WIDTH), row(WIDTH)));
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
        try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, config, INPUT)) {
            before.accept(trainer);
            steps(trainer, new ArrayList<>(), BATCHES, first, first + steps);
            after.accept(trainer);
        }
    }

    private static void train(Rule rule, ParallelMode mode, Consumer<ParallelTrainer> after) {
        try (Model model = model()) {
            train(model, new TrainerKind(mode, 2), rule, 0, 2, t -> {}, after);
        }
    }

    private static final String WEIGHT = "01ColumnParallelLinear_weight";

    /** One clear error each, and the state stays. */
    @Test(timeOut = 60_000)
    public void whatDoesNotFit() {
        train(Rule.ADAM, ParallelMode.TENSOR, RestoredStateTest::misfit);
        train(
                Rule.SGD,
                ParallelMode.TENSOR,
                trainer -> {
                    try (NDManager manager = NDManager.newBaseManager()) {
                        Map<String, NDArray> state =
                                Map.of("momentum", manager.zeros(new Shape(8, 16)));
                        throwsArgument(
                                () -> trainer.getOptimizerState(0).set(WEIGHT, state),
                                "The optimizer keeps no state of parameter " + WEIGHT,
                                ", but [momentum] is to be set: ");
                    }
                });
    }

    private static void misfit(ParallelTrainer trainer) {
        OptimizerState optimizer = trainer.getOptimizerState(0);
        try (NDManager manager = NDManager.newBaseManager()) {
            Map<String, NDArray> state = optimizer.get(WEIGHT, manager);
            assertEquals(state.keySet(), Set.of("mean", "variance"));
            float[] before = state.get("mean").toFloatArray();
            NDArray shard = manager.zeros(new Shape(8, 16)); // of [16, 16], over two ranks
            NDArray whole = manager.zeros(new Shape(16, 16));
            NDArray wide = shard.toType(DataType.FLOAT64, true);
            throwsArgument(
                    () -> optimizer.set(WEIGHT, Map.of("mean", shard)),
                    "The optimizer keeps [mean, variance] of parameter " + WEIGHT,
                    ", but [mean] is to be set: it is the state of another optimizer");
            throwsArgument(
                    () -> optimizer.set(WEIGHT, Map.of("mean", shard, "variance", whole)),
                    "The state variance of parameter " + WEIGHT + " has the shape (8, 16) on this",
                    " rank, but (16, 16) is to be set: ");
            throwsArgument(
                    () -> optimizer.set(WEIGHT, Map.of("mean", wide, "variance", wide)),
                    "The state of parameter " + WEIGHT + " is kept in float32, ",
                    " is in float64 and the parameter in float32");
            assertEquals(optimizer.get(WEIGHT, manager).get("mean").toFloatArray(), before);
            String unknown =
                    "The ranks have no parameter weight: the names are those of"
                            + " block.getParameters(), after trainer.initialize(...)";
            assertEquals(throwsArgument(() -> optimizer.set("weight", state)), unknown);
            assertEquals(throwsArgument(() -> optimizer.get("weight", manager)), unknown);
            assertEquals(throwsArgument(() -> optimizer.free("weight")), unknown);
            LearningRates rates = trainer.getLearningRates();
            Map<String, Integer> counts = rates.getCounts();
            throwsArgument(
                    () -> rates.setCounts(Map.of("weight", 3)),
                    "The ranks have no parameter weight: ");
            assertEquals(
                    throwsArgument(() -> rates.setCounts(Map.of(WEIGHT, 0))),
                    "The number of the last update of parameter "
                            + WEIGHT
                            + " must be 1 or more, not 0");
            assertEquals(rates.getCounts(), counts);
        }
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
