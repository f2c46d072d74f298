package io.djltp.llm;

import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.dataset.Batch;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.collective.ForkedJvm;
import io.djltp.llm.tune.TuningData;
import io.djltp.llm.tune.TuningSteps;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * A thousand steps on batches of many shapes hold no more than ten: not one array, and no native
 * memory, in a JVM whose heap is there from the start, so that what grows is native.
 */
public class TuningMemoryTest {

    /** What a JVM still takes after step 300. One leaked batch of logits a step would be 60 MiB. */
    private static final long SLACK_KIB = 4 * 1024;

    private static final Pattern REPORT = Pattern.compile("(\\d+) arrays=(\\d+) rss=(\\d+)");
    private static final int STEPS = 1000;

    @Test(groups = "sweep", timeOut = 240_000)
    public void testManySteps() throws Exception {
        Path folder = TestFolder.create();
        RandomFolder.writeDecoder(folder, "'eos_token_id': 262");
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < 60; i++) {
            lines.add("{\"text\": \"%s\"}".formatted("ab".repeat(1 + i * i % 15)));
        }
        Files.write(folder.resolve("texts.jsonl"), lines);
        String output =
                ForkedJvm.withFixedHeap(96)
                        .environment("MALLOC_ARENA_MAX", "2") // not one for each thread
                        .succeed(TuningMemoryTest.class, folder.toString());
        Map<Integer, long[]> found = new HashMap<>();
        REPORT.matcher(output)
                .results()
                .map(r -> IntStream.of(1, 2, 3).mapToLong(i -> Long.parseLong(r.group(i))))
                .map(LongStream::toArray)
                .forEach(numbers -> found.put((int) numbers[0], numbers));
        Assert.assertEquals(found.size(), 3, output);
        Assert.assertEquals(found.get(STEPS)[1], found.get(10)[1], "arrays: " + output);
        long growth = found.get(STEPS)[2] - found.get(300)[2];
        Assert.assertTrue(growth < SLACK_KIB, growth + " KiB more: " + output);
    }

    /**
     * Trains and evaluates, and prints what it holds early and late.
     *
     * @param args the folder of the model and the texts
     * @throws Exception if the training fails
     */
    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[0]);
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(Optimizer.adamW().build());
        try (LanguageModel model = LanguageModel.builder(folder).optShardedLogits(true).load();
                ParallelTrainer trainer =
                        new ParallelTrainer(model.getModel(), config, ParallelConfig.tensor(2))) {
            trainer.initialize(new Shape(4, 1));
            TuningData data =
                    TuningData.builder()
                            .setFile(folder.resolve("texts.jsonl"))
                            .setModel(model)
                            .optSampling(4, true)
                            .build();
            int step = 0;
            while (step < STEPS) {
                for (Batch batch : data.getData(trainer.getManager())) {
                    TuningSteps.step(trainer, List.of(batch));
                    if (++step == 10 || step == 300 || step == STEPS) {
                        report(step, trainer);
                    }
                }
                TuningSteps.evaluate(trainer, data.getData(trainer.getManager(), null, 0, 0));
            }
        }
    }

    private static void report(int step, ParallelTrainer trainer) throws Exception {
        System.gc(); // what hangs on unreachable objects is no leak
        int arrays = trainer.getManager().getParentManager().getManagedArrays().size();
        String status = Files.readString(Path.of("/proc/self/status"));
        String resident = status.replaceAll("(?s).*VmRSS:\\s*(\\d+).*", "$1");
        System.out.println(step + " arrays=" + arrays + " rss=" + resident);
    }
}
