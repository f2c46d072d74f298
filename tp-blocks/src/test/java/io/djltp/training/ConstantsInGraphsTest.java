package io.djltp.training;

import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.training.GradientCollector;
import ai.djl.training.loss.Loss;

import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * DJL makes an array from Java memory, which a graph does not keep: a constant that a block or a
 * loss has made must still be there when the backward pass asks for it, whatever Java's collector
 * has done meanwhile.
 */
public class ConstantsInGraphsTest {

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel(1, 2);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aCollectionBetweenForwardAndBackwardChangesNothing(TrainerKind kind) {
        Block dense =
                sequence(linear(5), new LambdaBlock(ConstantsInGraphsTest::scaled), linear(4));
        Block cut =
                sequence(linear(5), new LambdaBlock(ConstantsInGraphsTest::scaled), gathered(4));
        TrainingRun expected = train(PLAIN, dense, false);
        train(kind, cut, true).assertSame(expected, 5e-6); // fp32: sums in another order
    }

    private static NDList scaled(NDList input) {
        NDArray array = input.singletonOrThrow();
        return new NDList(array.mul(array.getManager().create(new float[] {1, 2, 3, 4, 0.5f})));
    }

    private static TrainingRun train(TrainerKind kind, Block block, boolean collect) {
        return TrainingRun.of(
                kind,
                block,
                new HalfSquareLoss(), // which makes a constant too
                new Shape(6, 3),
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 5; i++) {
                        NDList data = new NDList(random(manager, i, 6, 3));
                        NDList labels = new NDList(random(manager, 10 + i, 6, 4));
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            Loss loss = trainer.getLoss();
                            NDArray value = loss.evaluate(labels, trainer.forward(data, labels));
                            if (collect) {
                                collectAndReuse();
                            }
                            collector.backward(value);
                            numbers.add(value.getFloat());
                        }
                        trainer.step();
                    }
                });
    }

    /** Frees Java memory that nobody holds, and writes over it. */
    private static void collectAndReuse() {
        System.gc();
        try {
            Thread.sleep(20); // the memory is freed by a thread of its own
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
        List<ByteBuffer> reused = new ArrayList<>();
        for (int i = 0; i < 2000; i++) {
            ByteBuffer buffer = ByteBuffer.allocateDirect(4 + i % 24);
            while (buffer.remaining() >= 4) {
                buffer.putInt(0x7f000000);
            }
            reused.add(buffer);
        }
    }
}
