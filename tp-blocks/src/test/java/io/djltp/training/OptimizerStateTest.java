package io.djltp.training;

import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainingRun.held;
import static io.djltp.testing.TrainingRun.steps;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNotEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.internal.optimizer.OptimizerState;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;

/**
 * Ranks that share a device do not share the state of an optimizer, and a step is one step to it,
 * whatever the number of ranks. Closing the trainer frees the state.
 *
 * <p>The case is that of DJL's own {@code OptimizerTest}: ten units of ten ones, a batch of ten
 * times two, and the label four. By symmetry all weights stay equal, and so do all biases.
 */
public class OptimizerStateTest {

    private static final int SIZE = 10; // uneven over 3 and 4 ranks
    private static final double RATE = 0.1;

    private static Tracker rate() {
        return Tracker.fixed((float) RATE);
    }

    /** Optimizers, and after steps the weight and the bias: numbers of DJL's test, first. */
    private enum Rule {
        SGD(() -> Configs.sgd(0.1f), new double[][] {{1, 0.68, -0.16}, {2, 0.4912, -0.2544}}),
        /** Shared momentum would have moved the second rank twice as far. */
        MOMENTUM(
                () -> Configs.sgd(0.1f, 0.9f),
                new double[][] {
                    {1, 0.68, -0.16}, {2, 0.2032, -0.3984}, {12, 0.04637566, -0.4768118}
                },
                "momentum"),
        /** Adam divides by powers of the number of steps: a step counted twice would show. */
        ADAM(
                () -> Optimizer.adam().optLearningRateTracker(rate()).build(),
                adam(0),
                "mean",
                "variance"),
        ADAMW(
                () ->
                        Optimizer.adamW()
                                .optLearningRateTracker(rate())
                                .optWeightDecays(0.01f)
                                .build(),
                adam(0.01),
                "mean",
                "variance");

        private final Supplier<Optimizer> optimizer;
        private final double[][] expected;
        private final Set<String> state;

        Rule(Supplier<Optimizer> optimizer, double[][] expected, String... state) {
            this.optimizer = optimizer;
            this.expected = expected;
            this.state = Set.of(state);
        }
    }

    /** Adam by hand: its formulas for one weight and one bias. */
    private static double[][] adam(double decay) {
        double[][] steps = new double[10][];
        double[] value = {1, 0};
        double[] mean = new double[2];
        double[] variance = new double[2];
        for (int t = 1; t <= steps.length; t++) {
            double error = 2 * SIZE * value[0] + value[1] - 4;
            double[] gradient = {0.2 * error, 0.1 * error};
            double correction = Math.sqrt(1 - Math.pow(0.999, t)) / (1 - Math.pow(0.9, t));
            for (int i = 0; i < 2; i++) {
                value[i] -= RATE * decay * value[i];
                mean[i] = 0.9 * mean[i] + 0.1 * gradient[i];
                variance[i] = 0.999 * variance[i] + 0.001 * gradient[i] * gradient[i];
                value[i] -= RATE * correction * mean[i] / (Math.sqrt(variance[i]) + 1e-8);
            }
            steps[t - 1] = new double[] {t, value[0], value[1]};
        }
        return steps;
    }

    /** The values of DJL's test. */
    @Test
    public void theNumbersByHandAreThoseOfDjl() {
        assertEquals(adam(0)[0], new double[] {1, 0.9, -0.10000064}, 1e-5);
        assertEquals(adam(0)[1], new double[] {2, 0.80060977, -0.19939029}, 1e-5);
        assertEquals(adam(0.01)[0], new double[] {1, 0.8990001, -0.10000064}, 1e-5);
    }

    @DataProvider
    public Object[][] rules() {
        List<TrainerKind> kinds = TrainerKind.all(1, 2, 3, 4);
        kinds.add(MESH_2X2);
        return TrainerKind.rows(List.of(Rule.values()), kinds);
    }

    @Test(dataProvider = "rules", timeOut = 60_000)
    public void aStepIsOneStepToTheOptimizer(Rule rule, TrainerKind kind)
            throws IllegalAccessException {
        Optimizer optimizer = rule.optimizer.get();
        DefaultTrainingConfig config =
                Configs.of(new HalfSquareLoss(), optimizer)
                        .optInitializer(Initializer.ONES, Parameter.Type.WEIGHT);
        List<OptimizerState> states = new ArrayList<>();
        Network.Batches batches =
                (manager, step) ->
                        new NDList[] {
                            new NDList(manager.full(new Shape(SIZE, SIZE), 2f)),
                            new NDList(manager.full(new Shape(SIZE, SIZE), 4f))
                        };
        TrainingRun.Loop loop =
                (trainer, manager, losses) -> {
                    int made = 0;
                    for (double[] expected : rule.expected) {
                        steps(trainer, losses, batches, made, (int) expected[0]);
                        made = (int) expected[0];
                        for (int rank = 0; rank < kind.ranks(); rank++) {
                            // fp32 over at most twelve steps, and kernels' tails
                            assertAll(held(trainer, rank, 0), expected[1], "weight, rank " + rank);
                            assertAll(held(trainer, rank, 1), expected[2], "bias, rank " + rank);
                        }
                    }
                    for (int rank = 0; rank < kind.ranks(); rank++) {
                        states.add(((ParallelTrainer) trainer).getOptimizerState(rank));
                        assertState(trainer, rank, rule);
                    }
                };
        TrainingRun.of(kind, sequence(gathered(SIZE)), config, batches.shapes(), loop);
        for (OptimizerState state : states) { // closing the trainer frees it
            assertEquals(state.getNames(), Set.of());
        }
        // DJL's optimizers are read only: their own state and counts stay as they were
        for (Class<?> type = optimizer.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getType() == Map.class) {
                    field.setAccessible(true);
                    assertEquals(field.get(optimizer), Map.of(), field.getName());
                }
            }
        }
    }

    private static void assertAll(NDArray array, double expected, String what) {
        for (float each : array.toFloatArray()) {
            assertEquals(each, expected, 1e-5, what);
        }
    }

    /** The rank has state for its shards and replicas, by the names of the whole model. */
    private static void assertState(Trainer trainer, int rank, Rule rule) {
        OptimizerState state = ((ParallelTrainer) trainer).getOptimizerState(rank);
        String weight = "01ColumnParallelLinear_weight";
        Set<String> names = Set.of(weight, "01ColumnParallelLinear_bias");
        assertEquals(state.getNames(), names);
        try (NDManager manager = NDManager.newBaseManager()) {
            Map<String, NDArray> arrays = state.get(weight, manager);
            assertEquals(arrays.keySet(), rule.state);
            for (NDArray array : arrays.values()) {
                assertEquals(array.getShape(), held(trainer, rank, 0).getShape());
                assertNotEquals(array.getFloat(0, 0), 0f);
            }
            state.free(weight);
            assertEquals(state.get(weight, manager), Map.of());
        }
    }
}
