package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelContext;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;

/**
 * What a rank computes with belongs to managers of its own, which are on its device: a constant
 * that a block or a loss makes beside an array is then where the array is. On a CPU all devices are
 * one; that no manager serves two ranks is what can be seen of it there.
 */
public class DevicesOfRanksTest {

    private static final int CLASSES = 6;

    @DataProvider
    public Object[][] modes() {
        return new Object[][] {{ParallelMode.TENSOR}, {ParallelMode.DATA}, {ParallelMode.MIXED}};
    }

    @Test(dataProvider = "modes", timeOut = 60_000)
    public void noManagerServesTwoRanks(ParallelMode mode) {
        Owners owners = new Owners();
        try (Model model = Model.newInstance("net")) {
            boolean cut = mode != ParallelMode.DATA;
            model.setBlock(cut ? head(CLASSES) : linear(CLASSES));
            DefaultTrainingConfig config = Configs.of(owners);
            try (Trainer trainer = new TrainerKind(mode, 2).open(model, config)) {
                trainer.initialize(new Shape(4, 3));
                try (NDManager manager = trainer.getManager().newSubManager()) {
                    NDArray data = random(manager, 1, 4, 3);
                    NDArray labels = labels(manager, 2, 4, CLASSES);
                    backward(trainer, data, labels);
                    trainer.step();
                }
            }
        }
        assertTrue(owners.ranks.size() >= 4, owners.ranks.toString());
    }

    /** Notes which rank has arrays of which manager. */
    private static final class Owners extends Loss implements io.djltp.loss.ShardedLoss {

        private final Loss loss = new VocabParallelCrossEntropyLoss();
        private final Map<NDManager, Integer> ranks =
                Collections.synchronizedMap(new IdentityHashMap<>());

        Owners() {
            super("owners");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            note(labels.head());
            note(predictions.head());
            NDArray value = loss.evaluate(labels, predictions);
            note(value);
            return value;
        }

        @Override
        public float getWeight(NDList labels) {
            return labels.head().size();
        }

        private void note(NDArray array) {
            ParallelContext context = ParallelContext.current();
            assertEquals(array.getManager().getDevice(), context.getDevice());
            Integer other = ranks.put(array.getManager(), context.getRank());
            assertTrue(other == null || other == context.getRank(), "shared: " + array);
        }
    }
}
