package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.zeroGradients;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Configs;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** A block with a state on the ranks that the library does not know, against loops in Java. */
@Test(timeOut = 60_000)
public class StepParticipantTest {

    private static final int FEATURES = 3;
    private static final int CENTRES = 4;
    private static final int UNITS = 5;
    private static final float RATE = 0.2f;

    /** The same training by hand. */
    private static final class Serial {

        final float[] centres = centres();
        final double[] weight = new double[UNITS * FEATURES];
        final double[] uses = new double[CENTRES];
        final List<Float> losses = new ArrayList<>();

        Serial() {
            Arrays.fill(weight, 0.5);
        }

        void step(float[] x, float[] target, boolean frozen) {
            int rows = x.length / FEATURES;
            int[] nearest = ClassCentres.nearest(x, centres, FEATURES);
            double[] gradient = new double[weight.length];
            double loss = 0;
            for (int row = 0; row < rows; row++) {
                for (int unit = 0; unit < UNITS; unit++) {
                    double error = -target[row * UNITS + unit];
                    for (int i = 0; i < FEATURES; i++) {
                        error += weight[unit * FEATURES + i] * rest(x, nearest, row, i);
                    }
                    loss += error * error / 2 / (rows * UNITS);
                    for (int i = 0; i < FEATURES; i++) {
                        gradient[unit * FEATURES + i] +=
                                error * rest(x, nearest, row, i) / (rows * UNITS);
                    }
                }
            }
            losses.add((float) loss);
            for (int i = 0; i < weight.length; i++) {
                weight[i] -= RATE * gradient[i];
            }
            if (!frozen) {
                move(x, nearest);
            }
        }

        private double rest(float[] x, int[] nearest, int row, int i) {
            return (double) x[row * FEATURES + i] - centres[nearest[row] * FEATURES + i];
        }

        /** The mean of all rows so far, a row at a time. */
        private void move(float[] x, int[] nearest) {
            for (int row = 0; row < nearest.length; row++) {
                int k = nearest[row];
                uses[k]++;
                for (int i = 0; i < FEATURES; i++) {
                    double d = x[row * FEATURES + i] - centres[k * FEATURES + i];
                    centres[k * FEATURES + i] += (float) (d / uses[k]);
                }
            }
        }

        float[] weights() {
            float[] floats = new float[weight.length];
            for (int i = 0; i < floats.length; i++) {
                floats[i] = (float) weight[i];
            }
            return floats;
        }
    }

    private static float[] centres() {
        return new float[] {1, 0, 0, 0, 1, 0, 0, 0, 1, -1, -1, -1};
    }

    private static Block network(ClassCentres centres, Serial from) {
        centres.setInitializer(
                (manager, shape, type) -> manager.create(from.centres, shape),
                parameter -> parameter.getName().equals("centres"));
        ColumnParallelLinear last =
                ColumnParallelLinear.builder()
                        .setUnits(UNITS)
                        .optBias(false)
                        .optGatherOutput(true)
                        .build();
        last.setInitializer(
                (manager, shape, type) -> manager.create(from.weights(), shape),
                Parameter.Type.WEIGHT);
        return sequence(centres, last);
    }

    /** Uses of a trainer. */
    private interface Use {
        void with(ParallelTrainer trainer, NDManager manager);
    }

    private static void train(ParallelMode mode, int ranks, Block block, Serial expected, Use use) {
        try (Model model = Model.newInstance("net")) {
            model.setBlock(block);
            DefaultTrainingConfig config = Configs.of(Loss.l2Loss(), Configs.sgd(RATE));
            try (ParallelTrainer trainer =
                            new ParallelTrainer(model, config, Ranks.config(mode, ranks));
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(new Shape(1, FEATURES));
                use.with(trainer, manager);
                closeAndCompare(trainer, block, expected);
            }
        }
    }

    private static void closeAndCompare(ParallelTrainer trainer, Block block, Serial expected) {
        trainer.close(); // hands the weights back
        List<float[]> weights = TrainingRun.weights(block);
        assertClose(weights.get(0), expected.centres, 1e-5, "centres");
        assertClose(weights.get(1), expected.weights(), 1e-5, "weight");
    }

    private static NDArray data(NDManager manager, int step) {
        int rows = step == 2 ? 2 : 7; // one batch is smaller than three ranks
        return random(manager, step, rows, FEATURES);
    }

    private static NDArray target(NDManager manager, int step) {
        return random(manager, 50 + step, step == 2 ? 2 : 7, UNITS);
    }

    private static void step(ParallelTrainer trainer, NDManager manager, int step, Serial serial) {
        NDArray x = data(manager, step);
        NDArray target = target(manager, step);
        boolean frozen =
                !trainer.getModel().getBlock().getParameters().valueAt(0).requiresGradient();
        float loss = backward(trainer, x, target);
        trainer.step();
        serial.step(x.toFloatArray(), target.toFloatArray(), frozen);
        assertEquals(loss, serial.losses.get(serial.losses.size() - 1), 1e-5);
    }

    private static ClassCentres.Moving participant(ParallelTrainer trainer, int rank) {
        return (ClassCentres.Moving)
                trainer.getRanks().getContext(rank).getParticipants().iterator().next();
    }

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {
            {ParallelMode.TENSOR, 1},
            {ParallelMode.TENSOR, 2},
            {ParallelMode.TENSOR, 3},
            {ParallelMode.DATA, 1},
            {ParallelMode.DATA, 2},
            {ParallelMode.DATA, 3}
        };
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aBlockOfTheUsersOwnTakesPart(ParallelMode mode, int ranks) {
        Serial serial = new Serial();
        Block block = network(new ClassCentres(CENTRES, FEATURES), serial);
        List<ClassCentres.Moving> moving = new ArrayList<>();
        train(
                mode,
                ranks,
                block,
                serial,
                (trainer, manager) -> {
                    for (int i = 0; i < 4; i++) {
                        step(trainer, manager, i, serial);
                    }
                    for (int i = 0; i < ranks; i++) {
                        moving.add(participant(trainer, i));
                    }
                    assertFalse(moving.get(0).closed);
                });
        moving.forEach(each -> assertTrue(each.closed));
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void whatItSawIsForgottenWithTheGradients(ParallelMode mode, int ranks) {
        Serial serial = new Serial();
        Block block = network(new ClassCentres(CENTRES, FEATURES), serial);
        train(
                mode,
                ranks,
                block,
                serial,
                (trainer, manager) -> {
                    backward(trainer, data(manager, 9), target(manager, 9));
                    zeroGradients(trainer);
                    step(trainer, manager, 1, serial);
                });
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void itsStateGoesOnInAnotherTraining(ParallelMode mode, int ranks) {
        Serial serial = new Serial();
        float[][] uses = new float[ranks][];
        train(
                mode,
                ranks,
                network(new ClassCentres(CENTRES, FEATURES), serial),
                serial,
                (trainer, manager) -> {
                    step(trainer, manager, 0, serial);
                    for (int i = 0; i < ranks; i++) {
                        Map<String, NDArray> state = participant(trainer, i).getState(manager);
                        uses[i] = state.get("uses").toFloatArray();
                    }
                });
        ClassCentres centres = new ClassCentres(CENTRES, FEATURES);
        train(
                mode,
                ranks,
                network(centres, serial),
                serial,
                (trainer, manager) -> {
                    trainer.evaluate(new NDList(data(manager, 0)));
                    for (int i = 0; i < ranks; i++) {
                        participant(trainer, i).setState(Map.of("uses", manager.create(uses[i])));
                    }
                    step(trainer, manager, 1, serial);
                    centres.freezeParameters(true);
                    step(trainer, manager, 3, serial);
                });
    }

    @Test(
            timeOut = 60_000,
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = "(?s).*centres.*updates it itself.*")
    public void itsParameterHasNoOtherUse() {
        ClassCentres centres = new ClassCentres(CENTRES, FEATURES);
        Block block =
                new GraphBlock(
                                new Shape(FEATURES),
                                (call, x) ->
                                        new NDList(
                                                call.call("block", x.head())
                                                        .add(call.value("centres").sum())))
                        .add(
                                "block",
                                network(centres, new Serial()).getChildren().valueAt(0),
                                FEATURES)
                        .tie("centres", centres.table());
        train(
                ParallelMode.TENSOR,
                2,
                block,
                new Serial(),
                (trainer, manager) -> backward(trainer, data(manager, 0), data(manager, 1)));
    }

    @Test(
            timeOut = 60_000,
            expectedExceptions = RankFailedException.class,
            expectedExceptionsMessageRegExp =
                    "(?s).*centres.*shared by two blocks that update it themselves.*")
    public void aParameterHasOneOwner() {
        Parameter table = new ClassCentres(CENTRES, FEATURES).table();
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray values = manager.create(centres(), new Shape(CENTRES, FEATURES));
            Ranks.run(
                    ParallelMode.TENSOR,
                    2,
                    context -> {
                        for (String key : List.of("one", "another")) {
                            context.getParticipants()
                                    .get(
                                            key,
                                            ClassCentres.Moving.class,
                                            () -> new ClassCentres.Moving(table, values));
                        }
                        return null;
                    });
        }
    }
}
