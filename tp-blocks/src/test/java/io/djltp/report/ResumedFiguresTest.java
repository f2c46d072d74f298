package io.djltp.report;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.loss.Loss;
import ai.djl.util.Utils;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** The figures of a training that was resumed are those of the steps after the checkpoint's. */
public class ResumedFiguresTest {

    private static final int BATCHES = 4;

    @Test(timeOut = 60_000)
    public void stepsGoOn() throws Exception {
        Path folder = Files.createTempDirectory("figures");
        try {
            Assert.assertEquals(steps(folder, 1), List.of(1L, 2L, 3L, 4L));
            Assert.assertEquals(steps(folder, 3), List.of(5L, 6L, 7L, 8L, 9L, 10L, 11L, 12L));
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    /** Trains up to some epoch, and returns the steps of the losses. */
    private static List<Long> steps(Path folder, int epochs) throws Exception {
        Steps figures = new Steps();
        CheckpointListener checkpoints =
                CheckpointListener.builder().setFolder(folder).optEverySteps(BATCHES).build();
        ParallelConfig ranks =
                ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(1).build();
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(Linear.builder().setUnits(3).build());
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(Loss.l2Loss())
                            .optDevices(new Device[] {Device.cpu()})
                            .addTrainingListeners(figures, checkpoints);
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(manager.ones(new Shape(2 * BATCHES, 3)))
                            .optLabels(manager.ones(new Shape(2 * BATCHES, 3)))
                            .setSampling(2, true)
                            .build();
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
                trainer.initialize(new Shape(2, 3));
                checkpoints.fit(trainer, epochs, data, null);
            }
        }
        return figures.steps;
    }

    /** Keeps the steps. */
    private static final class Steps extends TrainingFigures {

        private final List<Long> steps = new ArrayList<>();

        @Override
        void accept(String chart, String name, String unit, long step, double value) {
            if (chart.equals(LOSS) && name.equals("training")) {
                steps.add(step);
            }
        }

        @Override
        void endStep(Trainer trainer, double seconds) {
            // the steps are what is asked for
        }

        @Override
        void begin(Trainer trainer) {
            // nothing is measured
        }

        @Override
        public void close() {
            // nothing is written
        }
    }
}
