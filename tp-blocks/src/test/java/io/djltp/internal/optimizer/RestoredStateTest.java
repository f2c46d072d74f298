package io.djltp.internal.optimizer;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainingRun.steps;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.Test;

import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;

/**
 * State that is set fits the optimizer and the parameter; what goes on from it is a resumed
 * training.
 */
public class RestoredStateTest {

    private static final Network.Batches BATCHES = Network.batches("8x16", "8x16");

    private static void train(
            Optimizer optimizer, ParallelMode mode, Consumer<ParallelTrainer> after) {
        TrainingRun.of(
                new TrainerKind(mode, 2),
                sequence(head(16), row(16)),
                Configs.of(new HalfSquareLoss(), optimizer),
                new Shape(8, 16),
                (trainer, manager, numbers) -> {
                    steps(trainer, numbers, BATCHES, 0, 2);
                    after.accept((ParallelTrainer) trainer);
                });
    }

    private static final String WEIGHT = "01ColumnParallelLinear_weight";

    /** One clear error each, and the state stays. */
    @Test(timeOut = 60_000)
    public void whatDoesNotFit() {
        train(Configs.adam(0.1f), ParallelMode.TENSOR, RestoredStateTest::misfit);
        train(
                Configs.sgd(0.1f),
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
                Configs.sgd(0.1f, 0.9f),
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
