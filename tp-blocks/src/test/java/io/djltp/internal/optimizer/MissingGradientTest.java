package io.djltp.internal.optimizer;

import static io.djltp.testing.ArrayAssert.floats;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.GraphBlock.graph;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MIXED_1;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.held;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNull;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.Tracker;

import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.function.IntPredicate;

/**
 * DJL takes a gradient that is not there for zero: momentum and weight decay still move. A gradient
 * that two parameters share is used once for each.
 */
public class MissingGradientTest {

    private Parameter never;
    private IntPredicate ranks;

    /** A layer, and another that is added to it in some steps and on some ranks only. */
    private Block sometimes() {
        ranks = rank -> true;
        never = Blocks.parameter("never", new Shape(3, 2));
        return graph(
                        Training.UNITS,
                        (call, x) -> {
                            NDArray output = call.call("always", x);
                            ParallelContext context = ParallelContext.current();
                            return ranks.test(context == null ? 0 : context.getRank())
                                    ? output.add(call.call("sometimes", x))
                                    : output;
                        })
                .add("always", linear(Training.UNITS), 6)
                .add("sometimes", linear(Training.UNITS), 6)
                .own(never);
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.rows(TENSOR_2, DATA_1, DATA_3);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void isZero(TrainerKind kind) {
        Tracker rate = Tracker.fixed(0.01f);
        Sgd.Builder sgd = Optimizer.sgd().setLearningRateTracker(rate).optMomentum(0.9f);
        Optimizer decays = sgd.optWeightDecays(0.1f).build();
        Optimizer adamW = Optimizer.adamW().optLearningRateTracker(rate).build();
        for (Optimizer optimizer : List.of(decays, adamW)) {
            run(kind, optimizer).assertSame(run(PLAIN, optimizer), 5e-6);
        }
    }

    /** Not in the first steps, and not in some later ones. */
    private TrainingRun run(TrainerKind kind, Optimizer optimizer) {
        return Training.run(
                kind, sometimes(), optimizer, 12, (trainer, step) -> ranks = rank -> step % 4 == 2);
    }

    /** All ranks sum, those with a gradient and those without, and end with the same weights. */
    @Test(timeOut = 60_000)
    public void onSomeRanksOnly() {
        Training.run(
                DATA_3,
                sometimes(),
                Configs.sgd(0.01f),
                5,
                (trainer, step) -> {
                    ranks = rank -> rank == step % 3;
                    for (int i = 0; i < 5; i++) {
                        float[] first = held(trainer, 0, i).toFloatArray();
                        assertEquals(held(trainer, 1, i).toFloatArray(), first);
                        assertEquals(held(trainer, 2, i).toFloatArray(), first);
                    }
                });
    }

    /** After a step there is no gradient, and a parameter that never has one has no state. */
    @Test(timeOut = 60_000)
    public void takesNoMemory() {
        Training.run(
                TENSOR_2,
                sometimes(),
                Optimizer.adam().build(),
                3,
                (trainer, step) -> {
                    for (int rank = 0; rank < 2 && step > 0; rank++) {
                        for (int i = 0; i < 5; i++) {
                            assertNull(Autograd.gradient(held(trainer, rank, i)));
                        }
                        OptimizerState state = ((ParallelTrainer) trainer).getOptimizerState(rank);
                        NDManager manager = trainer.getManager();
                        assertEquals(state.get("never", manager).size(), 0);
                        assertEquals(state.get("01always_weight", manager).size(), 2);
                    }
                });
    }

    /** A parameter in 16 bits that gets no gradient on any rank stays in 16 bits. */
    @Test(timeOut = 60_000)
    public void sixteenBits() {
        Sgd.Builder sgd = Optimizer.sgd().setLearningRateTracker(Tracker.fixed(0.5f));
        Optimizer decays = sgd.optMomentum(0.5f).optWeightDecays(0.25f).build();
        try (NDManager manager = NDManager.newBaseManager()) {
            // like a parameter of a model whose other parameters are in 32 bits
            NDArray start = random(manager, 1, 3, 2).toType(DataType.FLOAT16, true);
            float[] expected = floats(start.mul(1 - 0.125f));
            Block block = sometimes();
            never.setShape(null);
            never.setArray(start);
            Training.run(DATA_2, block, decays, 1);
            assertEquals(never.getArray().getDataType(), DataType.FLOAT16);
            assertEquals(floats(never.getArray()), expected, 5e-4f);
        }
    }

    /**
     * Parameters that are added have one gradient between them, which libtorch may leave in the
     * same memory for both: it is summed over the ranks, and rescaled, for each of them once.
     */
    @Test(timeOut = 60_000)
    public void aSharedOneIsUsedOnceForEach() {
        for (TrainerKind kind : List.of(TENSOR_1, TENSOR_2, DATA_1, DATA_2, MIXED_1)) {
            ofSum(kind).assertSame(ofSum(PLAIN), 5e-6);
        }
    }

    /** A layer with two parameters that are added, one of them seen in another shape. */
    private static TrainingRun ofSum(TrainerKind kind) {
        Block sum =
                graph(
                                Training.UNITS,
                                (call, x) -> {
                                    NDArray first = call.value("first").reshape(1, Training.UNITS);
                                    return call.call("linear", x)
                                            .add(first.add(call.value("other")));
                                })
                        .add("linear", linear(Training.UNITS), 6)
                        .add("first", new Shape(Training.UNITS, 1))
                        .add("other", new Shape(1, Training.UNITS));
        Sgd.Builder sgd = Optimizer.sgd().setLearningRateTracker(Tracker.fixed(0.1f));
        return Training.run(kind, sum, sgd.setRescaleGrad(0.5f).build(), 3);
    }
}
