package io.djltp.training;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.DATA_4;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.util.PairList;

import io.djltp.testing.Configs;

import org.testng.annotations.Test;

import java.util.concurrent.atomic.AtomicInteger;

/** A block that is no child of another one is initialized once, before the ranks begin. */
public class BlocksInFieldsTest {

    private static final int FEATURES = 3;

    @Test(timeOut = 60_000)
    public void areInitializedBeforeTheRanksRun() {
        Inner inner = new Inner();
        try (Model model = Model.newInstance("net")) {
            model.setBlock(sequence(linear(FEATURES), new Outer(inner)));
            DefaultTrainingConfig config = Configs.of(Loss.l1Loss());
            try (Trainer trainer = DATA_4.open(model, config);
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(new Shape(8, FEATURES));
                assertEquals(inner.initialized.get(), 1);
                NDArray data = random(manager, 1, 8, FEATURES);
                backward(trainer, data, data);
                trainer.step();
                assertEquals(inner.initialized.get(), 1); // and by none of the ranks
            }
        }
    }

    /** What a block without parameters needs. */
    private abstract static class Same extends AbstractBlock {

        Same() {
            super((byte) 1);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return inputShapes;
        }

        @Override
        public void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            // there are none
        }
    }

    private static final class Inner extends Same {

        private final AtomicInteger initialized = new AtomicInteger();

        @Override
        public void initialize(NDManager manager, DataType type, Shape... shapes) {
            initialized.incrementAndGet();
            super.initialize(manager, type, shapes);
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            return inputs;
        }
    }

    private static final class Outer extends Same {

        private final Inner inner;

        Outer(Inner inner) {
            this.inner = inner;
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            return inner.forward(store, inputs, training);
        }
    }
}
