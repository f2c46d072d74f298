package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

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

import io.djltp.collective.ForkedJvm;
import io.djltp.head.Margin;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.Recompute;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * A thousand steps hold no more than ten: not one array, and no native memory, in a JVM whose heap
 * is there from the start, so that what grows is native.
 */
public class LongTrainingTest {

    /**
     * What a JVM still takes between step 300 and 1,000; less than 1 MiB was seen. One leaked slice
     * of logits, 8 x 250, a step would be 5 MiB, one leaked weight of 128 x 128 would be 45.
     */
    private static final long SLACK_KIB = 4 * 1024;

    private static final Pattern REPORT = Pattern.compile("(\\d+) arrays=(\\d+) rss=(\\d+)");
    private static final int BATCH = 8;
    private static final int EPOCH = 10; // batches
    private static final int FEATURES = 128;
    private static final int CLASSES = 500;

    @DataProvider
    public Object[][] modes() {
        return new Object[][] {{"MIXED:recompute"}, {"TENSOR:plain-skipped"}};
    }

    @DataProvider
    public Object[][] otherModes() {
        return TrainerKind.rows(
                List.of(
                        ("TENSOR:plain DATA:plain MIXED:plain TENSOR:fused MIXED:sampled"
                                        + " TENSOR:fused-skipped DATA:fused-skipped MIXED:plain-skipped")
                                .split(" ")));
    }

    @Test(groups = "sweep", dataProvider = "otherModes", timeOut = 300_000)
    public void aThousandStepsOfOtherModes(String mode) throws Exception {
        aThousandStepsHoldNoMoreThanTen(mode);
    }

    @Test(dataProvider = "modes", timeOut = 300_000)
    public void aThousandStepsHoldNoMoreThanTen(String mode) throws Exception {
        String output =
                ForkedJvm.withFixedHeap(96)
                        .environment("MALLOC_ARENA_MAX", "2") // not one for each thread
                        .succeed(getClass(), mode);
        Map<Long, long[]> reports = new HashMap<>();
        REPORT.matcher(output)
                .results()
                .map(r -> Stream.of(1, 2, 3).mapToLong(i -> Long.parseLong(r.group(i))).toArray())
                .forEach(numbers -> reports.put(numbers[0], numbers));
        assertEquals(reports.size(), 4, output);
        assertEquals(reports.get(1000L)[1], reports.get(10L)[1], "live arrays: " + output);
        long growth = reports.get(1000L)[2] - reports.get(300L)[2];
        assertTrue(growth < SLACK_KIB, growth + " KiB more: " + output);
        // when all is closed, there are the data and the labels
        assertEquals(reports.get(0L)[1], 2, "live arrays after all: " + output);
    }

    /**
     * Trains a model, and prints what it holds early and late.
     *
     * @param args the mode and the head, such as TENSOR:fused: "plain", "fused" for a fused head,
     *     "sampled" for one with a margin too, or "recompute" for a plain one behind layers that
     *     are computed again in the backward pass
     * @throws Exception if the training fails
     */
    public static void main(String[] args) throws Exception {
        String[] parts = args[0].split(":");
        String[] names = parts[1].split("-");
        try (NDManager manager = NDManager.newBaseManager()) {
            TrainerKind kind = new TrainerKind(ParallelMode.valueOf(parts[0]), 2);
            train(kind, names[0], names.length > 1, manager);
            report(0, manager); // everything is closed but the data
        }
    }

    private static Block network(String name) {
        Block hidden = sequence(head(FEATURES), relu(), row(FEATURES));
        boolean fused = name.equals("fused") || name.equals("sampled");
        ClassificationHead.Builder head =
                ClassificationHead.builder().setUnits(CLASSES).optFusedLoss(fused);
        if ("sampled".equals(name)) {
            head.optSampleShare(0.3f).optMargin(Margin.arcFace(16, 0.3f)).optBias(false);
        }
        Block body = name.equals("recompute") ? new Recompute(hidden) : hidden;
        return sequence(linear(FEATURES), relu(), body, head.build());
    }

    private static void train(TrainerKind kind, String name, boolean skipped, NDManager manager)
            throws Exception {
        try (Model model = Blocks.model(network(name))) {
            NDArray data = manager.randomNormal(new Shape(EPOCH * BATCH, FEATURES));
            Shape rows = new Shape(EPOCH * BATCH);
            NDArray labels = manager.randomInteger(0, CLASSES, rows, DataType.INT64);
            ArrayDataset training = dataset(data, labels, BATCH);
            ArrayDataset validation = dataset(data, labels, EPOCH * BATCH);
            DefaultTrainingConfig config =
                    Configs.of(new VocabParallelCrossEntropyLoss(), Optimizer.adam().build())
                            .addEvaluator(new VocabParallelAccuracy())
                            .addTrainingListeners(new EvaluatorTrainingListener());
            try (Trainer trainer = kind.open(model, config, new Shape(BATCH, FEATURES))) {
                for (int step = EPOCH; step <= 1000; step += EPOCH) {
                    for (Batch batch : trainer.iterateDataset(training)) {
                        if (skipped) {
                            skip(trainer, batch);
                        } else {
                            EasyTrain.trainBatch(trainer, batch);
                            trainer.step();
                        }
                        batch.close();
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

    private static String residentKiB() throws Exception {
        Path status = Path.of("/proc/self/status");
        if (!Files.isReadable(status)) {
            return "0"; // not on Linux
        }
        return Files.readString(status).replaceAll("(?s).*VmRSS:\\s*(\\d+).*", "$1");
    }
}
