package io.djltp.training;

import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainingRun.backward;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNotEquals;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.Tracker;

import io.djltp.optimizer.OptimizerState;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;

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

    /** The values are those of DJL's test. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void sgd(TrainerKind kind) {
        Optimizer optimizer = Optimizer.sgd().setLearningRateTracker(rate()).build();
        double[][] steps = train(kind, optimizer, 2);
        assertClose(steps[0], 0.68, -0.16);
        assertClose(steps[1], 0.4912, -0.2544);
    }

    /** Shared momentum would have moved the second rank twice as far. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void sgdWithMomentum(TrainerKind kind) {
        Optimizer optimizer =
                Optimizer.sgd().setLearningRateTracker(rate()).optMomentum(0.9f).build();
        double[][] steps = train(kind, optimizer, 12);
        assertClose(steps[0], 0.68, -0.16);
        assertClose(steps[1], 0.2032, -0.3984);
        assertClose(steps[11], 0.04637566, -0.4768118);
    }

    /** Adam divides by powers of the number of steps: a step counted twice would show. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void adamCountsOneStepForAllRanks(TrainerKind kind) {
        Optimizer optimizer = Optimizer.adam().optLearningRateTracker(rate()).build();
        double[][] steps = train(kind, optimizer, 10);
        assertClose(steps[0], 0.9, -0.10000064); // the values of DJL's test
        assertClose(steps[1], 0.80060977, -0.19939029);
        assertAdam(steps, 0);
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void adamWCountsOneStepForAllRanks(TrainerKind kind) {
        Optimizer optimizer =
                Optimizer.adamW().optLearningRateTracker(rate()).optWeightDecays(0.01f).build();
        double[][] steps = train(kind, optimizer, 10);
        assertClose(steps[0], 0.8990001, -0.10000064); // the values of DJL's test
        assertAdam(steps, 0.01);
    }

    /** Adam by hand: its formulas for one weight and one bias. */
    private static void assertAdam(double[][] steps, double decay) {
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
            assertClose(steps[t - 1], value[0], value[1]);
        }
    }

    @DataProvider
    public Object[][] optimizersWithState() {
        List<Object[]> cases = new ArrayList<>();
        for (Object[] kind : TrainerKind.parallel(1, 3)) {
            cases.add(
                    new Object[] {
                        kind[0],
                        Optimizer.sgd().setLearningRateTracker(rate()).optMomentum(0.9f).build()
                    });
            cases.add(
                    new Object[] {
                        kind[0], Optimizer.adam().optLearningRateTracker(rate()).build()
                    });
            cases.add(
                    new Object[] {
                        kind[0], Optimizer.adamW().optLearningRateTracker(rate()).build()
                    });
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "optimizersWithState", timeOut = 60_000)
    public void closingTheTrainerFreesTheState(TrainerKind kind, Optimizer optimizer) {
        List<OptimizerState> states = new ArrayList<>();
        train(
                kind,
                optimizer,
                1,
                trainer -> {
                    for (int rank = 0; rank < kind.ranks(); rank++) {
                        states.add(trainer.getOptimizerState(rank));
                        assertState(trainer, rank, optimizer);
                    }
                });
        for (OptimizerState state : states) {
            assertEquals(state.getNames(), Set.of());
        }
    }

    /** The rank has state for its shards and replicas, by the names of the whole model. */
    private static void assertState(ParallelTrainer trainer, int rank, Optimizer optimizer) {
        OptimizerState state = trainer.getOptimizerState(rank);
        String weight = "01ColumnParallelLinear_weight";
        assertEquals(state.getNames(), Set.of(weight, "01ColumnParallelLinear_bias"));
        Set<String> expected =
                optimizer instanceof Sgd ? Set.of("momentum") : Set.of("mean", "variance");
        try (NDManager manager = NDManager.newBaseManager()) {
            Map<String, NDArray> arrays = state.get(weight, manager);
            assertEquals(arrays.keySet(), expected);
            Parameter parameter = trainer.getModel().getBlock().getParameters().get(weight);
            for (NDArray array : arrays.values()) {
                assertEquals(
                        array.getShape(),
                        trainer.getParameterStore(rank).getValue(parameter, null, true).getShape());
                assertNotEquals(array.getFloat(0, 0), 0f);
            }
            state.free(weight);
            assertEquals(state.get(weight, manager), Map.of());
        }
    }

    /** DJL's optimizers are read only: their own state and counts stay as they were. */
    @Test(dataProvider = "optimizersWithState", timeOut = 60_000)
    public void theOptimizerOfDjlKeepsNothing(TrainerKind kind, Optimizer optimizer)
            throws IllegalAccessException {
        train(kind, optimizer, 2);
        for (Class<?> type = optimizer.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getType() == Map.class) {
                    field.setAccessible(true);
                    assertEquals(field.get(optimizer), Map.of(), field.getName());
                }
            }
        }
    }

    private static double[][] train(TrainerKind kind, Optimizer optimizer, int steps) {
        return train(kind, optimizer, steps, trainer -> {});
    }

    /** Returns the weight and the bias after each step. */
    private static double[][] train(
            TrainerKind kind,
            Optimizer optimizer,
            int steps,
            Consumer<ParallelTrainer> beforeClose) {
        double[][] values = new double[steps][];
        try (Model model = Model.newInstance("net")) {
            model.setBlock(sequence(gathered(SIZE)));
            DefaultTrainingConfig config =
                    Configs.of(new HalfSquareLoss(), optimizer)
                            .optInitializer(Initializer.ONES, Parameter.Type.WEIGHT);
            try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, config)) {
                trainer.initialize(new Shape(SIZE, SIZE));
                for (int i = 0; i < steps; i++) {
                    step(trainer);
                    values[i] = new double[2];
                    for (int rank = 0; rank < kind.ranks(); rank++) {
                        values[i] = sameValue(trainer, rank, rank == 0 ? null : values[i]);
                    }
                }
                beforeClose.accept(trainer);
            }
        }
        return values;
    }

    private static void step(Trainer trainer) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDList data = new NDList(manager.full(new Shape(SIZE, SIZE), 2f));
            NDList labels = new NDList(manager.full(new Shape(SIZE, SIZE), 4f));
            backward(trainer, data, labels);
            trainer.step();
        }
    }

    /** Returns the one weight and the one bias that a rank has, as every other rank. */
    private static double[] sameValue(ParallelTrainer trainer, int rank, double[] others) {
        Block block = trainer.getModel().getBlock();
        double[] value = new double[2];
        int i = 0;
        for (Parameter parameter : block.getParameters().values()) {
            float[] all =
                    trainer.getParameterStore(rank)
                            .getValue(parameter, Device.cpu(), true)
                            .toFloatArray();
            value[i] = all[0];
            for (float each : all) {
                assertEquals(each, value[i], 1e-6, parameter.getName()); // kernels' tails
            }
            if (others != null) {
                assertEquals(value[i], others[i], 1e-6, "rank " + rank);
            }
            i++;
        }
        return value;
    }

    private static Tracker rate() {
        return Tracker.fixed((float) RATE);
    }

    private static void assertClose(double[] actual, double weight, double bias) {
        // fp32 over at most twelve steps
        assertEquals(actual[0], weight, 1e-5, "weight");
        assertEquals(actual[1], bias, 1e-5, "bias");
    }
}
