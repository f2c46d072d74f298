package io.djltp.optimizer;

import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNull;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.training.ParameterStore;
import ai.djl.training.optimizer.AdamW;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.PairList;

import io.djltp.internal.torch.Autograd;
import io.djltp.rank.ParallelContext;
import io.djltp.testing.TrainerKind;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.IntPredicate;

/** DJL takes a gradient that is not there for zero: momentum and weight decay still move. */
public class MissingGradientTest {

    /** A layer, and another that is added to it in some steps and on some ranks only. */
    private static final class Sometimes extends AbstractBlock {

        private static final byte VERSION = 1;

        private final Block always;
        private final Block sometimes;
        private final Parameter never;
        private IntPredicate ranks = rank -> true;

        Sometimes() {
            super(VERSION);
            always = addChildBlock("always", Linear.builder().setUnits(Training.UNITS).build());
            sometimes =
                    addChildBlock("sometimes", Linear.builder().setUnits(Training.UNITS).build());
            never =
                    addParameter(
                            Parameter.builder()
                                    .setName("never")
                                    .setType(Parameter.Type.WEIGHT)
                                    .optShape(new Shape(3, 2))
                                    .build());
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray output = always.forward(store, inputs, training).singletonOrThrow();
            ParallelContext context = ParallelContext.current();
            if (ranks.test(context == null ? 0 : context.getRank())) {
                NDList other = sometimes.forward(store, inputs, training);
                output = output.add(other.singletonOrThrow());
            }
            return new NDList(output);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return always.getOutputShapes(inputShapes);
        }

        @Override
        public void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            always.initialize(manager, type, shapes);
            sometimes.initialize(manager, type, shapes);
        }
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.rows(TENSOR_2, DATA_1, DATA_3);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void isZero(TrainerKind kind) {
        Tracker rate = Tracker.fixed(0.01f);
        for (boolean momentum : new boolean[] {true, false}) {
            List<List<float[]>> runs = new ArrayList<>();
            for (TrainerKind each : List.of(PLAIN, kind)) {
                Sgd.Builder sgd = Optimizer.sgd().optMomentum(0.9f);
                sgd.optWeightDecays(0.1f);
                AdamW.Builder adam = Optimizer.adamW().optLearningRateTracker(rate);
                Optimizer optimizer =
                        momentum ? sgd.setLearningRateTracker(rate).build() : adam.build();
                Sometimes block = new Sometimes();
                runs.add(
                        Training.run(
                                each,
                                block,
                                optimizer,
                                12,
                                // not in the first steps, and not in some later ones
                                (trainer, step) -> block.ranks = rank -> step % 4 == 2));
            }
            Training.assertSame(runs.get(1), runs.get(0), 5e-6);
        }
    }

    /** All ranks sum, those with a gradient and those without, and end with the same weights. */
    @Test(timeOut = 60_000)
    public void onSomeRanksOnly() {
        Sometimes block = new Sometimes();
        Training.run(
                DATA_3,
                block,
                Optimizer.sgd().setLearningRateTracker(Tracker.fixed(0.01f)).build(),
                5,
                (trainer, step) -> {
                    block.ranks = rank -> rank == step % 3;
                    assertReplicas((ParallelTrainer) trainer);
                });
    }

    private static void assertReplicas(ParallelTrainer trainer) {
        for (Parameter parameter : trainer.getModel().getBlock().getParameters().values()) {
            NDArray first = trainer.getParameterStore(0).getValue(parameter, null, true);
            for (int rank = 1; rank < 3; rank++) {
                NDArray other = trainer.getParameterStore(rank).getValue(parameter, null, true);
                assertEquals(other.toFloatArray(), first.toFloatArray());
            }
        }
    }

    /** After a step there is no gradient, and a parameter that never has one has no state. */
    @Test(timeOut = 60_000)
    public void takesNoMemory() {
        TrainerKind kind = TENSOR_2;
        Sometimes block = new Sometimes();
        Training.run(
                kind,
                block,
                Optimizer.adam().build(),
                3,
                (trainer, step) -> {
                    for (int rank = 0; rank < 2 && step > 0; rank++) {
                        assertNothing((ParallelTrainer) trainer, rank, block.never);
                    }
                });
    }

    private static void assertNothing(ParallelTrainer trainer, int rank, Parameter never) {
        for (Parameter parameter : trainer.getModel().getBlock().getParameters().values()) {
            NDArray value = trainer.getParameterStore(rank).getValue(parameter, null, true);
            assertNull(Autograd.gradient(value), parameter.getName());
        }
        try (NDManager manager = NDManager.newBaseManager()) {
            OptimizerState state = trainer.getOptimizerState(rank);
            assertEquals(state.get("never", manager).size(), 0);
            assertEquals(state.get("01always_weight", manager).size(), 2);
        }
    }

    /** A parameter in 16 bits that gets no gradient on any rank stays in 16 bits. */
    @Test(timeOut = 60_000)
    public void sixteenBits() {
        Sometimes block = new Sometimes();
        Sgd.Builder builder = Optimizer.sgd().optMomentum(0.5f);
        builder.optWeightDecays(0.25f);
        Optimizer optimizer = builder.setLearningRateTracker(Tracker.fixed(0.5f)).build();
        try (NDManager manager = NDManager.newBaseManager()) {
            // like a parameter of a model whose other parameters are in 32 bits
            NDArray start = random(manager, 1, 3, 2).toType(DataType.FLOAT16, true);
            float[] before = start.toType(DataType.FLOAT32, true).toFloatArray();
            block.never.setShape(null);
            block.never.setArray(start);
            Training.run(DATA_2, block, optimizer, 1, (trainer, step) -> {});
            NDArray after = block.never.getArray();
            assertEquals(after.getDataType(), DataType.FLOAT16);
            float[] values = after.toType(DataType.FLOAT32, true).toFloatArray();
            for (int i = 0; i < values.length; i++) {
                assertEquals(values[i], before[i] * (1 - 0.125f), 5e-4);
            }
        }
    }
}
