package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.GraphBlock.graph;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.parameter;
import static io.djltp.testing.TrainingRun.zeroGradients;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.loss.Loss;

import io.djltp.internal.rank.RankPool;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** A block with a state on the ranks that the library does not know, against loops in Java. */
public class StepParticipantTest {

    private static final int FEATURES = 3;
    private static final int UNITS = 5;
    private static final float RATE = 0.2f;

    /** Batches of seven rows; one of them is smaller than three ranks. */
    private static final Network.Batches BATCHES =
            Network.batches(new int[] {7, 7, 2, 7}, "Rx3", "Rx5");

    /** The same training by hand. */
    private static final class Serial {
        final double[] mean = {0.5, 0, -0.5};
        final double[] weight = new double[UNITS * FEATURES];
        double uses;

        Serial() {
            Arrays.fill(weight, 0.5);
        }

        /** Makes a step, and returns the loss. */
        double step(float[] x, float[] target, boolean frozen) {
            int rows = x.length / FEATURES;
            double[] gradient = new double[weight.length];
            double loss = 0;
            for (int row = 0; row < rows; row++) {
                for (int unit = 0; unit < UNITS; unit++) {
                    double error = -target[row * UNITS + unit];
                    for (int i = 0; i < FEATURES; i++) {
                        error += weight[unit * FEATURES + i] * (x[row * FEATURES + i] - mean[i]);
                    }
                    loss += error * error / 2 / (rows * UNITS);
                    for (int i = 0; i < FEATURES; i++) {
                        gradient[unit * FEATURES + i] +=
                                error * (x[row * FEATURES + i] - mean[i]) / (rows * UNITS);
                    }
                }
            }
            for (int i = 0; i < weight.length; i++) {
                weight[i] -= RATE * gradient[i];
            }
            for (int row = 0; row < rows && !frozen; row++) { // the mean of all rows so far
                uses++;
                for (int i = 0; i < FEATURES; i++) {
                    mean[i] += (x[row * FEATURES + i] - mean[i]) / uses;
                }
            }
            return loss;
        }
    }

    private static float[] floats(double[] values) {
        float[] floats = new float[values.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = (float) values[i];
        }
        return floats;
    }

    /** Uses a trainer, and compares the weights that are handed back. */
    private static void train(
            TrainerKind kind, RunningMean block, Serial expected, TrainingRun.Loop loop) {
        float[] mean = floats(expected.mean);
        float[] weight = floats(expected.weight);
        ColumnParallelLinear.Builder last = ColumnParallelLinear.builder().setUnits(UNITS);
        Block column = last.optBias(false).optGatherOutput(true).build();
        block.setInitializer((m, shape, type) -> m.create(mean, shape), parameter -> true);
        column.setInitializer((m, shape, type) -> m.create(weight, shape), parameter -> true);
        List<float[]> weights =
                TrainingRun.of(
                                kind,
                                sequence(block, column),
                                Configs.of(Loss.l2Loss(), Configs.sgd(RATE)),
                                new Shape(1, FEATURES),
                                loop)
                        .getWeights();
        assertClose(weights.get(0), floats(expected.mean), 1e-5, "mean");
        assertClose(weights.get(1), floats(expected.weight), 1e-5, "weight");
    }

    private static void step(Trainer trainer, NDManager manager, int step, Serial serial) {
        NDList[] batch = BATCHES.make(manager, step);
        boolean frozen = !parameter(trainer, 0).requiresGradient();
        float loss = TrainingRun.step(trainer, batch[0], batch[1]);
        float[] x = batch[0].head().toFloatArray();
        assertEquals(loss, serial.step(x, batch[1].head().toFloatArray(), frozen), 1e-5);
    }

    private static RunningMean.Moving participant(Trainer trainer, int rank) {
        ParallelTrainer parallel = (ParallelTrainer) trainer;
        return (RunningMean.Moving)
                parallel.getRanks().getContext(rank).getParticipants().iterator().next();
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.rows(TENSOR_1, TENSOR_2, TENSOR_3, DATA_1, DATA_2, DATA_3);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aBlockOfTheUsersOwnTakesPart(TrainerKind kind) {
        Serial serial = new Serial();
        List<RunningMean.Moving> moving = new ArrayList<>();
        RunningMean mean = new RunningMean(FEATURES);
        TrainingRun.Loop loop =
                (trainer, manager, numbers) -> {
                    // what it saw is forgotten with the gradients
                    NDList[] batch = BATCHES.make(manager, 9);
                    TrainingRun.backward(trainer, batch[0], batch[1]);
                    zeroGradients(trainer);
                    for (int i = 0; i < 4; i++) {
                        step(trainer, manager, i, serial);
                    }
                    for (int i = 0; i < kind.ranks(); i++) {
                        moving.add(participant(trainer, i));
                    }
                    assertFalse(moving.get(0).closed);
                };
        train(kind, mean, serial, loop);
        moving.forEach(each -> assertTrue(each.closed));
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void itsStateGoesOnInAnotherTraining(TrainerKind kind) {
        Serial serial = new Serial();
        List<Map<String, NDArray>> states = new ArrayList<>();
        NDManager base = NDManager.newBaseManager();
        TrainingRun.Loop loop =
                (trainer, manager, numbers) -> {
                    step(trainer, manager, 0, serial);
                    for (int i = 0; i < kind.ranks(); i++) {
                        states.add(participant(trainer, i).getState(base));
                    }
                };
        train(kind, new RunningMean(FEATURES), serial, loop);
        RunningMean mean = new RunningMean(FEATURES);
        train(
                kind,
                mean,
                serial,
                (trainer, manager, numbers) -> {
                    trainer.evaluate(BATCHES.make(manager, 0)[0]);
                    for (int i = 0; i < kind.ranks(); i++) {
                        participant(trainer, i).setState(states.get(i));
                    }
                    step(trainer, manager, 1, serial);
                    mean.freezeParameters(true);
                    step(trainer, manager, 3, serial);
                });
        base.close();
    }

    @Test(timeOut = 60_000)
    public void itsParameterHasNoOtherUse() {
        RunningMean mean = new RunningMean(FEATURES);
        mean.setInitializer(Initializer.ONES, parameter -> true);
        Block block =
                graph(FEATURES, (call, x) -> call.call("block", x).add(call.value("mean").sum()))
                        .add("block", mean, FEATURES)
                        .tie("mean", mean.mean());
        DefaultTrainingConfig config = Configs.of(Loss.l2Loss());
        throwsArgument(
                () -> TrainingRun.of(TENSOR_2, block, config, Network.batches("7x3", "7x3"), 1),
                "mean .. updates it itself");
    }

    @Test(timeOut = 60_000)
    public void aParameterHasOneOwner() {
        Parameter table = new RunningMean(FEATURES).mean();
        RankPool.RankTask<Void> two =
                context -> {
                    for (String key : List.of("one", "another")) {
                        Supplier<RunningMean.Moving> maker = () -> new RunningMean.Moving(table);
                        context.getParticipants().get(key, RunningMean.Moving.class, maker);
                    }
                    return null;
                };
        expect(
                RankFailedException.class,
                () -> Ranks.run(ParallelMode.TENSOR, 2, two),
                "mean .. shared by two blocks that update it themselves");
    }
}
