package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.PLAIN;

import static org.testng.Assert.assertEquals;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.TrainingListener.BatchData;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/**
 * A network trained by several ranks under unmodified {@code EasyTrain.fit} is the network that
 * DJL's own trainer trains: the same losses and the same weights, in every mode and on meshes, with
 * every optimizer, at uneven sizes.
 */
public class TrainingEqualsSerialTest {

    // all uneven over 2, 3 and 4
    private static final int BATCH = 11;
    private static final int FEATURES = 12;
    private static final int HIDDEN = 17;
    private static final int CLASSES = 23;

    enum Optimizers {
        SGD(() -> Configs.sgd(0.1f)),
        MOMENTUM(() -> Configs.sgd(0.05f, 0.9f)),
        ADAM(() -> Configs.adam(0.01f)),
        ADAMW(() -> Optimizer.adamW().optLearningRateTracker(Tracker.fixed(0.01f)).build());

        final Supplier<Optimizer> supplier;

        Optimizers(Supplier<Optimizer> supplier) {
            this.supplier = supplier;
        }
    }

    /** What is left of a run. */
    private static final class Run {
        final List<Float> losses = new ArrayList<>();
        final List<float[]> weights = new ArrayList<>();
    }

    private final Map<Optimizers, Run> ofDjl = new EnumMap<>(Optimizers.class);

    @DataProvider
    public Object[][] cases() {
        List<Object[]> cases = new ArrayList<>();
        // what is communicated does not depend on the optimizer: over another backend, one will do
        boolean local = System.getProperty("io.djltp.backend") == null;
        for (Optimizers optimizer :
                local ? Optimizers.values() : new Optimizers[] {Optimizers.ADAM}) {
            for (Object[] kind : TrainerKind.parallel()) {
                cases.add(new Object[] {optimizer, kind[0]});
            }
            cases.add(new Object[] {optimizer, MESH_2X3});
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void testSameLossesAndWeights(Optimizers optimizer, TrainerKind kind) throws Exception {
        if (!ofDjl.containsKey(optimizer)) {
            Loss loss = Loss.softmaxCrossEntropyLoss();
            ofDjl.put(optimizer, train(plain(), loss, optimizer, PLAIN));
        }
        Run serial = ofDjl.get(optimizer);
        Run parallel = train(parallel(), new VocabParallelCrossEntropyLoss(), optimizer, kind);
        // fp32 sums in another order; Adam divides by the root of squares that start near zero
        boolean adam = optimizer == Optimizers.ADAM || optimizer == Optimizers.ADAMW;
        double tolerance = adam ? 1e-4 : 1e-5;
        assertEquals(parallel.losses.size(), serial.losses.size());
        for (int i = 0; i < serial.losses.size(); i++) {
            double expected = serial.losses.get(i);
            assertEquals(
                    parallel.losses.get(i), expected, expected * tolerance, "loss of step " + i);
        }
        for (int i = 0; i < serial.weights.size(); i++) {
            float[] expected = serial.weights.get(i);
            assertEquals(parallel.weights.get(i).length, expected.length);
            for (int j = 0; j < expected.length; j++) {
                assertEquals(parallel.weights.get(i)[j], expected[j], tolerance, "parameter " + i);
            }
        }
    }

    private static Block plain() {
        return sequence(linear(9), tanh(), linear(HIDDEN), relu(), linear(11), linear(CLASSES));
    }

    private static Block parallel() {
        return sequence(linear(9), tanh(), head(HIDDEN), relu(), row(11), column(CLASSES));
    }

    private static Run train(Block block, Loss loss, Optimizers optimizer, TrainerKind kind)
            throws Exception {
        Engine.getInstance().setRandomSeed(42);
        Run run = new Run();
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block);
            ArrayDataset dataset = dataset(manager);
            Engine.getInstance().setRandomSeed(7);
            DefaultTrainingConfig config =
                    Configs.of(loss, optimizer.supplier.get())
                            .addTrainingListeners(new LossRecorder(run.losses));
            try (Trainer trainer = kind.open(model, config, new Shape(BATCH, FEATURES))) {
                EasyTrain.fit(trainer, 2, dataset, null);
            }
            block.getParameters()
                    .forEach(pair -> run.weights.add(pair.getValue().getArray().toFloatArray()));
        }
        return run;
    }

    private static ArrayDataset dataset(NDManager manager) {
        NDArray data = manager.randomNormal(new Shape(4 * BATCH, FEATURES));
        NDArray labels = manager.randomInteger(0, CLASSES, new Shape(4 * BATCH), DataType.INT64);
        return new ArrayDataset.Builder()
                .setData(data)
                .optLabels(labels)
                .setSampling(BATCH, false)
                .build();
    }

    /** Records the loss of every step. */
    private static final class LossRecorder extends TrainingListenerAdapter {

        private final List<Float> losses;

        LossRecorder(List<Float> losses) {
            this.losses = losses;
        }

        @Override
        public void onTrainingBegin(Trainer trainer) {
            trainer.getLoss().addAccumulator("step");
        }

        @Override
        public void onTrainingBatch(Trainer trainer, BatchData batchData) {
            Device device = batchData.getLabels().keySet().iterator().next();
            trainer.getLoss()
                    .updateAccumulator(
                            "step",
                            batchData.getLabels().get(device),
                            batchData.getPredictions().get(device));
            losses.add(trainer.getLoss().getAccumulator("step"));
            trainer.getLoss().resetAccumulator("step");
        }
    }
}
