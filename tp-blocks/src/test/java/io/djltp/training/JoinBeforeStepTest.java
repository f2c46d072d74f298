package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.backward;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNotEquals;
import static org.testng.Assert.expectThrows;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.dataset.Batch;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelContext;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Failures of DJL's own multi-device training that must not come back: with an executor it does not
 * wait for the devices (DJL issue 2459), and a gradient that sums to zero is taken for none (DJL
 * issue 3696).
 */
public class JoinBeforeStepTest {

    private static final int ROWS = 8;
    private static final int CLASSES = 400_000; // an update takes longer than to look at one weight

    private final AtomicInteger forwards = new AtomicInteger();

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel(2, 4);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void everyCallWaitsForTheSlowestRank(TrainerKind kind) throws Exception {
        ExecutorService executor = Executors.newFixedThreadPool(2);
        Optimizer optimizer = Optimizer.adam().build();
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(sequence(new LambdaBlock(this::slow), head(CLASSES)));
            DefaultTrainingConfig config =
                    Configs.of(new VocabParallelCrossEntropyLoss(), optimizer)
                            .optExecutorService(executor);
            try (Trainer trainer = kind.open(model, config, new Shape(ROWS, 3))) {
                // DJL runs a function once more to know the shape of its result
                trainer.forward(new NDList(manager.ones(new Shape(ROWS, 3))));
                forwards.set(0);
                int steps = 0;
                for (Batch batch : trainer.iterateDataset(dataset(manager))) {
                    EasyTrain.trainBatch(trainer, batch);
                    steps++;
                    assertEquals(forwards.get(), steps * kind.ranks());
                    float[] before = lastWeights(trainer, kind.ranks());
                    trainer.step();
                    float[] after = lastWeights(trainer, kind.ranks());
                    for (int rank = 0; rank < kind.ranks(); rank++) {
                        assertNotEquals(after[rank], before[rank], "rank " + rank);
                    }
                    sleep();
                    assertEquals(lastWeights(trainer, kind.ranks()), after);
                    batch.close();
                }
                assertEquals(steps, 2);
            }
        } finally {
            executor.shutdown();
        }
    }

    /** Two classes and no weights: each row's gradient is a half and minus a half. */
    @Test(timeOut = 60_000)
    public void aGradientThatSumsToZeroIsAGradient() {
        expectThrows(IllegalStateException.class, () -> zeroSum(PLAIN));
        for (Object[] kind : TrainerKind.parallel()) {
            float[] bias = zeroSum((TrainerKind) kind[0]);
            // 3/4 of the labels are 0: the gradient is 1/2 - 3/4, the rate is 1
            assertEquals(bias, new float[] {0.25f, -0.25f}, kind[0].toString());
        }
    }

    private static float[] zeroSum(TrainerKind kind) {
        try (Model model = Model.newInstance("net")) {
            model.setBlock(head(2));
            DefaultTrainingConfig config =
                    Configs.of(new VocabParallelCrossEntropyLoss(), Configs.sgd(1f))
                            .optInitializer(Initializer.ZEROS, Parameter.Type.WEIGHT);
            if (kind.mode() != null && kind.ranks() > 2) {
                kind = new TrainerKind(kind.mode(), 2); // of two classes no more than two ranks
            }
            try (Trainer trainer = kind.open(model, config, new Shape(4, 1))) {
                NDManager manager = trainer.getManager();
                NDList data = new NDList(manager.ones(new Shape(4, 1)));
                NDList labels = new NDList(manager.create(new long[] {0, 0, 1, 0}));
                backward(trainer, data, labels);
                trainer.step();
            }
            return model.getBlock().getParameters().get(1).getValue().getArray().toFloatArray();
        }
    }

    /** Returns the element of each rank's weight that the rank updates last. */
    private static float[] lastWeights(Trainer trainer, int ranks) {
        Parameter weight = trainer.getModel().getBlock().getParameters().valueAt(0);
        float[] last = new float[ranks];
        for (int rank = 0; rank < ranks; rank++) {
            NDArray values =
                    ((ParallelTrainer) trainer)
                            .getParameterStore(rank)
                            .getValue(weight, Device.cpu(), true);
            last[rank] = values.get(values.getShape().get(0) - 1).getFloat(2);
        }
        return last;
    }

    private NDList slow(NDList input) {
        ParallelContext context = ParallelContext.current();
        if (context != null && context.getRank() == 1) {
            sleep();
        }
        forwards.incrementAndGet();
        return input;
    }

    private static void sleep() {
        try {
            Thread.sleep(100);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private static ArrayDataset dataset(NDManager manager) {
        return new ArrayDataset.Builder()
                .setData(manager.ones(new Shape(2 * ROWS, 3)))
                .optLabels(manager.zeros(new Shape(2 * ROWS), DataType.INT64))
                .setSampling(ROWS, false)
                .build();
    }
}
