package io.djltp.training;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.dataset.Batch;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.head.Margin;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.Recompute;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

import java.nio.file.Files;
import java.nio.file.Path;

/** Trains a small model for many steps, and prints what it holds early and late. */
public final class LongTraining {

    private static final int BATCH = 8;
    private static final int EPOCH = 10; // batches
    private static final int FEATURES = 128;
    private static final int CLASSES = 500;

    private LongTraining() {}

    /**
     * Trains a model.
     *
     * @param args the mode and the head, such as TENSOR:fused: "plain", "fused" for a fused head,
     *     "sampled" for one with a margin too, or "recompute" for a plain one behind layers that
     *     are computed again in the backward pass
     * @throws Exception if the training fails
     */
    public static void main(String[] args) throws Exception {
        String[] parts = args[0].split(":");
        TrainerKind kind = new TrainerKind(ParallelMode.valueOf(parts[0]), 2);
        String[] names = parts[1].split("-");
        boolean recomputed = names[0].equals("recompute");
        try (NDManager manager = NDManager.newBaseManager()) {
            ClassificationHead head = head(recomputed ? "plain" : names[0]);
            train(kind, head, recomputed, names.length > 1, manager);
            report(0, manager); // everything is closed but the data
        }
    }

    private static ClassificationHead head(String name) {
        ClassificationHead.Builder head =
                ClassificationHead.builder().setUnits(CLASSES).optFusedLoss(!"plain".equals(name));
        if ("sampled".equals(name)) {
            head.optSampleShare(0.3f).optMargin(Margin.arcFace(16, 0.3f)).optBias(false);
        }
        return head.build();
    }

    private static Block hidden() {
        return sequence(Blocks.head(FEATURES), relu(), row(FEATURES));
    }

    private static void train(
            TrainerKind kind,
            ClassificationHead head,
            boolean recomputed,
            boolean skipped,
            NDManager manager)
            throws Exception {
        try (Model model = Model.newInstance("net")) {
            model.setBlock(
                    sequence(
                            linear(FEATURES),
                            relu(),
                            recomputed ? new Recompute(hidden()) : hidden(),
                            head));
            NDArray data = manager.randomNormal(new Shape(EPOCH * BATCH, FEATURES));
            NDArray labels =
                    manager.randomInteger(0, CLASSES, new Shape(EPOCH * BATCH), DataType.INT64);
            ArrayDataset training = dataset(data, labels, BATCH);
            ArrayDataset validation = dataset(data, labels, EPOCH * BATCH);
            DefaultTrainingConfig config =
                    Configs.of(new VocabParallelCrossEntropyLoss(), Optimizer.adam().build())
                            .addEvaluator(new VocabParallelAccuracy())
                            .addTrainingListeners(new EvaluatorTrainingListener());
            try (Trainer trainer = kind.open(model, config, new Shape(BATCH, FEATURES))) {
                int step = 0;
                while (step < 1000) {
                    for (Batch batch : trainer.iterateDataset(training)) {
                        if (skipped) {
                            skip(trainer, batch);
                        } else {
                            EasyTrain.trainBatch(trainer, batch);
                            trainer.step();
                        }
                        batch.close();
                        step++;
                    }
                    // of as many rows as the steps: what a row leaves behind adds up to as much
                    for (Batch batch : trainer.iterateDataset(validation)) {
                        EasyTrain.validateBatch(trainer, batch);
                        batch.close();
                    }
                    report(step, manager);
                }
            }
        }
    }

    /** Does with a batch what a loop does that finds its loss to be NaN. */
    @SuppressWarnings("try") // a collector is used by being open
    private static void skip(Trainer trainer, Batch batch) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(batch.getData(), batch.getLabels());
            trainer.getLoss().evaluate(batch.getLabels(), output);
        }
    }

    private static ArrayDataset dataset(NDArray data, NDArray labels, int batch) {
        return new ArrayDataset.Builder()
                .setData(data)
                .optLabels(labels)
                .setSampling(batch, true)
                .build();
    }

    private static void report(int step, NDManager manager) throws Exception {
        if (step == 10 || step == 300 || step == 1000 || step == 0) {
            System.gc(); // what hangs on unreachable objects is no leak
            // of the manager above all others
            int arrays = manager.getParentManager().getManagedArrays().size();
            System.out.println(step + " arrays=" + arrays + " rss=" + residentKiB());
        }
    }

    private static long residentKiB() throws Exception {
        Path status = Path.of("/proc/self/status");
        if (!Files.isReadable(status)) {
            return 0; // not on Linux
        }
        for (String line : Files.readAllLines(status)) {
            if (line.startsWith("VmRSS:")) {
                return Long.parseLong(line.replaceAll("\\D", ""));
            }
        }
        return 0;
    }
}
