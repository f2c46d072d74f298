package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;
import java.util.function.Supplier;

/**
 * The ranks compute the loss in the forward pass. Who changes the labels before asking for it gets
 * the loss of what they are then, as under DJL's own trainer.
 */
public class ChangedLabelsTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 7;

    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void ofALayer(TrainerKind kind) {
        assertSame(kind, () -> sequence(linear(4), first(true, CLASSES)));
    }

    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void ofAFusedHead(TrainerKind kind) {
        assertSame(kind, () -> sequence(linear(4), fused(CLASSES)));
    }

    private static void assertSame(TrainerKind kind, Supplier<Block> block) {
        run(kind, block.get()).assertSame(run(TrainerKind.PLAIN, block.get()), 1e-5);
    }

    private static TrainingRun run(TrainerKind kind, Block block) {
        return TrainingRun.of(
                kind,
                block,
                new VocabParallelCrossEntropyLoss(),
                new Shape(ROWS, FEATURES),
                ChangedLabelsTest::train);
    }

    private static void train(Trainer trainer, NDManager manager, List<Float> numbers) {
        for (int step = 0; step < 3; step++) {
            NDList labels = new NDList(TrainingRun.labels(manager, step, ROWS, CLASSES - 1));
            NDList data = new NDList(TrainingRun.random(manager, 10 + step, ROWS, FEATURES));
            try (GradientCollector collector = trainer.newGradientCollector()) {
                NDList output = trainer.forward(data, labels);
                labels.head().addi(1);
                NDArray loss = trainer.getLoss().evaluate(labels, output);
                if (trainer instanceof ParallelTrainer) { // it is not computed once more
                    Assert.assertSame(trainer.getLoss().evaluate(labels, output), loss);
                }
                numbers.add(loss.getFloat());
                collector.backward(loss);
            }
            trainer.step();
        }
    }
}
