package io.djltp.training;

import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertNotNull;
import static org.testng.Assert.assertSame;
import static org.testng.Assert.expectThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.internal.torch.AlignedMemory;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.testing.FreedBuffers;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * What a training loop may do between a forward pass and the step: the result is that of DJL's own
 * trainer, or one error before any rank goes backward, after which the trainer goes on.
 */
public class BeforeBackwardTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 7;
    private static final Shape INPUT = new Shape(ROWS, FEATURES);

    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aManagerThatIsClosed(TrainerKind kind) {
        assertRefusedAndGoesOn(
                kind,
                IllegalStateException.class,
                pass -> pass.collector.backward(closed(pass, false)),
                "was closed",
                "Go backward before");
        assertRefusedAndGoesOn(
                kind,
                IllegalStateException.class,
                pass -> pass.collector.backward(closed(pass, true)),
                "manager of the inputs was closed",
                "go backward, before it is closed");
        assertRefusedAndGoesOn( // which is not left out of a sum
                kind,
                IllegalStateException.class,
                pass -> {
                    NDArray loss = closed(pass, true);
                    NDArray other = pass.loss(data(pass.manager, 2), () -> {});
                    pass.collector.backward(other.add(loss));
                },
                "manager of the inputs was closed");
        assertRefusedAndGoesOn(
                kind,
                IllegalStateException.class,
                pass -> pass.loss(data(pass.manager, 1), pass.manager::close),
                "manager of the inputs was closed");
    }

    private static NDArray closed(Pass pass, boolean detached) {
        try (NDManager scope = pass.manager.newSubManager()) {
            NDArray loss = pass.loss(data(scope, 1), () -> {});
            if (detached) {
                loss.detach();
            }
            return loss;
        }
    }

    /** Arrays of the batch, and another pass, may be closed before the backward pass. */
    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void whatIsNotNeededAnyMore(TrainerKind kind) {
        runClosing(kind).assertSame(runClosing(PLAIN), 1e-5);
    }

    private static TrainingRun runClosing(TrainerKind kind) {
        return run(
                kind,
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        try (Pass pass = new Pass(trainer, manager)) {
                            NDManager skipped = pass.manager.newSubManager();
                            pass.loss(data(skipped, 9), () -> {});
                            NDList data = data(pass.manager, i);
                            NDList output = trainer.forward(data, pass.labels);
                            NDArray loss = trainer.getLoss().evaluate(pass.labels, output);
                            skipped.close();
                            output.head().close();
                            if (kind.isParallel()) { // DJL does not keep their Java memory
                                pass.labels.head().close();
                            }
                            pass.collector.backward(loss);
                            numbers.add(loss.getFloat());
                        }
                        trainer.step();
                    }
                });
    }

    /** The graph does not keep it, and the collector may free it. */
    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void anInputInJavaMemoryThatIsClosed(TrainerKind kind) {
        runOnShared(kind, true).assertSame(runOnShared(PLAIN, false), 1e-5);
    }

    private static TrainingRun runOnShared(TrainerKind kind, boolean closed) {
        return run(
                kind,
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        NDArray data = shared(manager, i); // a collector keeps what is made in it
                        try (Pass pass = new Pass(trainer, manager)) {
                            NDArray loss = pass.loss(new NDList(data), () -> {});
                            if (closed) {
                                data.close();
                                FreedBuffers.collect();
                                fill((int) INPUT.size() * Float.BYTES);
                            }
                            pass.collector.backward(loss);
                        }
                        trainer.step();
                    }
                });
    }

    /** Returns an input of which ranks make no copy: it begins at a cache line. */
    private static NDArray shared(NDManager manager, int seed) {
        NDArray data = random(manager, seed, ROWS, FEATURES);
        while (!AlignedMemory.holds(data)) {
            data = random(manager, seed, ROWS, FEATURES);
        }
        return data;
    }

    private static void fill(int bytes) {
        for (int i = 0; i < 500; i++) {
            ByteBuffer other = ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
            while (other.hasRemaining()) {
                other.putFloat(1234.5f);
            }
        }
    }

    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aSecondCollector(TrainerKind kind) {
        assertRefusedAndGoesOn(
                kind,
                IllegalStateException.class,
                pass -> pass.trainer.newGradientCollector(),
                "A gradient collector of this trainer is open",
                "close it before the next");
        run(
                kind,
                (trainer, manager, numbers) -> {
                    GradientCollector first = trainer.newGradientCollector();
                    first.close();
                    try (GradientCollector second = trainer.newGradientCollector()) {
                        first.close(); // once more, and not the second
                        expectThrows(IllegalStateException.class, trainer::newGradientCollector);
                        assertNotNull(second);
                    }
                });
    }

    @DataProvider
    public Object[][] heads() {
        List<Object[]> rows = new ArrayList<>();
        List<Supplier<Block>> heads = List.of(() -> head(CLASSES), () -> fused(CLASSES));
        for (Supplier<Block> block : heads) {
            for (Object[] kind : TrainerKind.eachMode()) {
                rows.add(new Object[] {kind[0], block});
            }
        }
        return rows.toArray(new Object[0][]);
    }

    /**
     * DJL looks for zeros before the first step, to find a loop that forgets {@code backward};
     * ranks see that themselves. Later steps are made by both: momentum goes on.
     */
    @Test(dataProvider = "heads", timeOut = 60_000)
    public void gradientsThatAreZero(TrainerKind kind, Supplier<Block> block) {
        TrainingRun plain = runZeros(PLAIN, block.get(), 1, 0, 1);
        runZeros(kind, block.get(), 1, 0, 1).assertSame(plain, 1e-5);
        expectThrows(IllegalStateException.class, () -> runZeros(PLAIN, block.get(), 0));
        TrainingRun one = runZeros(PLAIN, block.get(), 1);
        List<float[]> after = runZeros(kind, block.get(), 0, 1).getWeights();
        for (int i = 0; i < after.size(); i++) { // the first step has changed nothing
            float[] expected = one.getWeights().get(i);
            for (int k = 0; k < expected.length; k++) {
                assertEquals(after.get(i)[k], expected[k], 1e-5f);
            }
        }
    }

    private static TrainingRun runZeros(TrainerKind kind, Block block, float... factors) {
        return TrainingRun.of(
                kind,
                sequence(linear(FEATURES), block),
                new VocabParallelCrossEntropyLoss(),
                INPUT,
                (trainer, manager, numbers) -> {
                    for (float factor : factors) {
                        try (Pass pass = new Pass(trainer, manager)) {
                            NDArray loss = pass.loss(data(pass.manager, 1), () -> {});
                            pass.collector.backward(loss.mul(factor));
                        }
                        trainer.step();
                    }
                });
    }

    /** A loss of whole outputs has got no slice. */
    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void labelsOfAnotherShape(TrainerKind kind) {
        Block block = gathered(CLASSES);
        TrainingRun.of(
                kind,
                sequence(linear(FEATURES), block),
                Loss.l2Loss(),
                INPUT,
                (trainer, manager, numbers) -> {
                    NDList labels = new NDList(manager.ones(new Shape(ROWS, CLASSES + 1)));
                    RuntimeException e =
                            expectThrows(
                                    RuntimeException.class,
                                    () -> trainer.forward(data(manager, 1), labels));
                    assertFalse(e.getMessage().contains("slice"), e.getMessage());
                });
    }

    /**
     * Evaluators ask for the loss again before the step: it is there, and a head that draws classes
     * keeps its gradient.
     */
    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void theLossIsThereAfterIt(TrainerKind kind) {
        Block head =
                ClassificationHead.builder()
                        .setUnits(40)
                        .optSampleShare(0.5f)
                        .optBatchShardedInput(true)
                        .build();
        TrainingRun.of(
                kind,
                sequence(linear(FEATURES), head),
                new VocabParallelCrossEntropyLoss(),
                INPUT,
                (trainer, manager, numbers) -> {
                    for (int step = 1; step <= 3; step++) {
                        NDList labels = new NDList(labels(manager, step, ROWS, 40));
                        NDList output;
                        NDArray loss;
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            output = trainer.forward(data(manager, step), labels);
                            loss = trainer.getLoss().evaluate(labels, output);
                            collector.backward(loss);
                        }
                        assertSame(trainer.getLoss().evaluate(labels, output), loss);
                        trainer.step();
                    }
                });
    }

    private static NDList data(NDManager manager, int seed) {
        return new NDList(random(manager, seed, ROWS, FEATURES));
    }

    private static <T extends RuntimeException> void assertRefusedAndGoesOn(
            TrainerKind kind, Class<T> type, Consumer<Pass> wrong, String... texts) {
        TrainingRun run =
                run(
                        kind,
                        (trainer, manager, numbers) -> {
                            step(trainer, manager, 1);
                            try (Pass pass = new Pass(trainer, manager)) {
                                expect(type, () -> wrong.accept(pass), texts);
                            }
                            step(trainer, manager, 2); // nothing is lost
                        });
        TrainingRun plain =
                run(
                        PLAIN,
                        (trainer, manager, numbers) -> {
                            step(trainer, manager, 1);
                            step(trainer, manager, 2);
                        });
        run.assertSame(plain, 1e-5);
    }

    private static TrainingRun run(TrainerKind kind, TrainingRun.Loop loop) {
        return TrainingRun.of(
                kind,
                sequence(linear(FEATURES), head(CLASSES)),
                new VocabParallelCrossEntropyLoss(),
                INPUT,
                loop);
    }

    private static void step(Trainer trainer, NDManager manager, int seed) {
        try (Pass pass = new Pass(trainer, manager)) {
            pass.collector.backward(pass.loss(data(pass.manager, seed), () -> {}));
        }
        trainer.step();
    }

    /** A batch, and the collector of its backward pass. */
    private static final class Pass implements AutoCloseable {

        private final Trainer trainer;
        private final NDManager manager;
        private final NDList labels;
        private final GradientCollector collector;

        Pass(Trainer trainer, NDManager parent) {
            this.trainer = trainer;
            manager = parent.newSubManager();
            labels = new NDList(labels(manager, 5, ROWS, CLASSES));
            collector = trainer.newGradientCollector();
        }

        /** Computes a loss, and does something between it and the forward pass. */
        NDArray loss(NDList data, Runnable between) {
            NDList output = trainer.forward(data, labels);
            between.run();
            return trainer.getLoss().evaluate(labels, output);
        }

        @Override
        public void close() {
            collector.close();
            manager.close();
        }
    }
}
