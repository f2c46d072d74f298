package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.PairList;

import io.djltp.head.LossOptions;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ClassificationHead;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;

/**
 * A fused head that a step does not use has a gradient of zero, as in DJL: its momentum and its
 * weight decay go on.
 */
public class SeldomUsedHeadTest {

    private static final int STEPS = 8;

    /** Two heads, of which a step uses one. */
    private static final class TwoHeads extends AbstractBlock {

        private final Block first = head();
        private final Block second = head();
        private boolean useSecond;

        TwoHeads() {
            super((byte) 1);
            addChildBlock("first", first);
            addChildBlock("second", second);
        }

        private static Block head() {
            return ClassificationHead.builder().setUnits(FusedTraining.CLASSES).build();
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray input = inputs.singletonOrThrow();
            return (useSecond ? second : first).forward(store, new NDList(input), training);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return first.getOutputShapes(inputShapes);
        }

        @Override
        public void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            first.initialize(manager, type, shapes);
            second.initialize(manager, type, shapes);
        }
    }

    @Test(timeOut = 60_000)
    public void isUpdatedAsByDjl() {
        Tracker rate = Tracker.fixed(0.1f);
        List<Supplier<Optimizer>> optimizers =
                List.of(
                        () ->
                                Optimizer.sgd()
                                        .setLearningRateTracker(rate)
                                        .optMomentum(0.9f)
                                        .optWeightDecays(0.1f)
                                        .build(),
                        () -> Optimizer.adamW().optLearningRateTracker(rate).build());
        for (Supplier<Optimizer> optimizer : optimizers) {
            List<float[]> expected = train(TrainerKind.PLAIN, optimizer.get());
            for (int ranks = 1; ranks <= 3; ranks++) {
                TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
                List<float[]> actual = train(kind, optimizer.get());
                for (int i = 0; i < expected.size(); i++) {
                    ArrayAssert.assertClose(actual.get(i), expected.get(i), 1e-5, "" + i);
                }
            }
        }
    }

    private static List<float[]> train(TrainerKind kind, Optimizer optimizer) {
        TwoHeads block = new TwoHeads();
        List<float[]> weights = new ArrayList<>();
        FusedTraining.use(
                kind,
                block,
                FusedTraining.loss(LossOptions.DEFAULT),
                optimizer,
                (trainer, manager) -> {
                    for (int i = 0; i < STEPS; i++) {
                        block.useSecond = i >= 2 && i % 3 != 0;
                        TrainingRun.backward(
                                trainer,
                                FusedTraining.data(manager, i),
                                FusedTraining.labels(manager, i));
                        trainer.step();
                    }
                    trainer.close(); // hands the weights back
                    weights.addAll(TrainingRun.weights(block));
                });
        return weights;
    }
}
