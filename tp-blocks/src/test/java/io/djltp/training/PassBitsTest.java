package io.djltp.training;

import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.steps;
import static io.djltp.testing.TrainingRun.zeroGradients;

import static org.testng.Assert.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.NDScope;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.transformer.BertBlock;
import ai.djl.training.GradientCollector;
import ai.djl.training.loss.Loss;

import io.djltp.internal.parameters.BlockWalk;
import io.djltp.internal.torch.ArrayMemory;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Configs;
import io.djltp.testing.FreedBuffers;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Supplier;

/**
 * What a pass computes, to the last bit, depends neither on whether it is the first, which is
 * watched, nor on Java's collector: a number that it computes with, and an array that a block, a
 * loss or a caller has made of Java memory, is referred to by libtorch's graph, of which the
 * collector does not know.
 */
public class PassBitsTest {

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.rows(TENSOR_2, DATA_2, DATA_3, MIXED_3, MESH_2X2);
    }

    /** A training that goes on from a checkpoint has its first pass elsewhere. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void theFirstPassHasTheBitsOfTheOthers(TrainerKind kind) {
        for (int rows : new int[] {7, 9, 13}) { // which begin anywhere in a cache line
            Network.Batches batches = Network.batches(rows + "x37", rows + "x11");
            oneStep(kind, batches, true).assertBitEqual(oneStep(kind, batches, false));
        }
    }

    /** One step, of the first pass or of one after another whose gradients are forgotten. */
    private static TrainingRun oneStep(TrainerKind kind, Network.Batches batches, boolean later) {
        return TrainingRun.of(
                kind,
                sequence(linear(19), tanh(), gathered(11)),
                Loss.l2Loss(),
                batches.shapes()[0],
                (trainer, manager, numbers) -> {
                    NDList[] first = batches.make(manager, 1);
                    if (later) {
                        backward(trainer, first[0], first[1]);
                        zeroGradients(trainer);
                    }
                    steps(trainer, numbers, batches, 0, 1);
                });
    }

    /** Networks that compute with numbers and constants. */
    @DataProvider
    public Object[][] networks() {
        return new Object[][] {
            numbers("mul", map(x -> x.mul(2f))),
            numbers("swish", Activation.swishBlock(1.5f)),
            numbers("div in a manager of its own", map(PassBitsTest::inManagerOfItsOwn)),
            numbers("div in a scope of its own", map(PassBitsTest::inScopeOfItsOwn)),
            numbers("a constant", map(x -> x.mul(x.getManager().create(CONSTANT)))),
            {
                "attention, whose scores DJL divides by a number, and multiplies its mask with one",
                (Supplier<Block>) PassBitsTest::bert,
                Loss.softmaxCrossEntropyLoss(),
                (Network.Batches) PassBitsTest::tokens,
                List.of(TENSOR_1, TENSOR_3)
            }
        };
    }

    private static final float[] CONSTANT = {1, 2, 3, 4, 0.5f};

    private static Object[] numbers(String name, Block block) {
        Supplier<Block> net = () -> sequence(linear(5), block, gathered(3));
        List<TrainerKind> kinds = List.of(TENSOR_1, TENSOR_3, DATA_1, DATA_3, MIXED_2);
        Loss loss = new HalfSquareLoss(); // which makes a constant too
        return new Object[] {name, net, loss, Network.batches("6x4", "6x3"), kinds};
    }

    private static NDArray inManagerOfItsOwn(NDArray array) {
        NDManager outer = array.getManager();
        try (NDManager inner = NDManager.subManagerOf(array)) {
            array.attach(inner);
            NDArray result = array.mul(inner.create(1 / 3f)).mul(4f).pow(2f);
            array.attach(outer);
            result.attach(outer);
            return result;
        }
    }

    private static NDArray inScopeOfItsOwn(NDArray array) {
        try (NDScope scope = new NDScope()) {
            scope.suppressNotUsedWarning();
            NDArray result = array.mul(array.getManager().create(3f)).div(7f);
            NDScope.unregister(result);
            return result;
        }
    }

    private static Block bert() {
        BertBlock bert =
                BertBlock.builder()
                        .nano()
                        .optTransformerBlockCount(1)
                        .setTokenDictionarySize(20)
                        .optMaxSequenceLength(5)
                        .build();
        BlockWalk.of(bert, (part, path, cut) -> withoutDropout(part));
        return sequence(bert).add(x -> new NDList(x.get(1)), "pooled").add(linear(7));
    }

    /** The builder does not take the rate of the attention's. */
    private static void withoutDropout(Block block) {
        try {
            if (block instanceof Dropout) {
                Field rate = Dropout.class.getDeclaredField("rate");
                rate.setAccessible(true);
                rate.set(block, 0f);
            }
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    private static NDList[] tokens(NDManager manager, int step) {
        NDList[] batch = Network.batches("4x5:20 4x5:2", "4:7").make(manager, step);
        batch[0].add(batch[0].head().onesLike());
        return batch;
    }

    /** The losses and the weights are those of a run that the collector leaves alone. */
    @Test(dataProvider = "networks", timeOut = 60_000)
    public void theCollectorChangesNothing(
            String name,
            Supplier<Block> net,
            Loss loss,
            Network.Batches batches,
            List<TrainerKind> kinds) {
        for (TrainerKind kind : kinds) {
            train(kind, net.get(), loss, batches, FreedBuffers::overwrite)
                    .assertBitEqual(train(kind, net.get(), loss, batches, () -> {}));
        }
    }

    private static TrainingRun train(
            TrainerKind kind,
            Block net,
            Loss loss,
            Network.Batches batches,
            Runnable beforeBackward) {
        return TrainingRun.of(
                kind,
                net,
                Configs.of(loss, Configs.sgd(0.01f)),
                batches.shapes(),
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 3; step++) {
                        NDList[] batch = batches.make(manager, step);
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList output = trainer.forward(batch[0], batch[1]);
                            NDArray value = trainer.getLoss().evaluate(batch[1], output);
                            NDArray scaled = value.mul(0.5f);
                            beforeBackward.run();
                            collector.backward(scaled);
                            numbers.add(value.getFloat());
                            assertTrue(Float.isFinite(value.getFloat()), "loss of " + step);
                        }
                        trainer.step();
                    }
                });
    }

    /** The graph does not keep an input that is closed, and the collector may free it. */
    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void anInputInJavaMemoryThatIsClosed(TrainerKind kind) {
        onShared(kind, true).assertSame(onShared(PLAIN, false), 1e-5);
    }

    private static TrainingRun onShared(TrainerKind kind, boolean closed) {
        return TrainingRun.of(
                kind,
                sequence(linear(5), head(7)),
                new VocabParallelCrossEntropyLoss(),
                new Shape(6, 5),
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        NDArray data = random(manager, i, 6, 5); // a collector keeps what it sees
                        while (!ArrayMemory.isAligned(data)) { // of which ranks make no copy
                            data = random(manager, i, 6, 5);
                        }
                        NDList labels = new NDList(labels(manager, 5, 6, 7));
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList output = trainer.forward(new NDList(data), labels);
                            NDArray loss = trainer.getLoss().evaluate(labels, output);
                            if (closed) {
                                data.close();
                                FreedBuffers.collect();
                                fill(6 * 5 * Float.BYTES);
                            }
                            collector.backward(loss);
                        }
                        trainer.step();
                    }
                });
    }

    private static void fill(int bytes) {
        for (int i = 0; i < 500; i++) {
            ByteBuffer other = ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
            while (other.hasRemaining()) {
                other.putFloat(1234.5f);
            }
        }
    }

    /** After 1,000 steps there are as many buffers as after 10: those of a step are let go. */
    @Test(timeOut = 60_000)
    public void buffersAreLetGo() {
        long[] counts = new long[2];
        TrainingRun.of(
                TENSOR_2,
                sequence(linear(5), Activation.swishBlock(1.5f)),
                Loss.l2Loss(),
                new Shape(6, 4),
                (trainer, manager, numbers) -> {
                    for (int step = 1; step <= 1000; step++) {
                        steps(trainer, new ArrayList<>(), Network.batches("6x4", "6x5"), 1, 2);
                        if (step % 2 == 0) { // a pass that no backward pass follows
                            try (NDManager batch = manager.newSubManager()) {
                                trainer.forward(new NDList(random(batch, 1, 6, 4)));
                            }
                        }
                        if (step == 10 || step == 1000) {
                            counts[step / 1000] = FreedBuffers.collect();
                        }
                    }
                });
        for (int i = 0; i < 5 && counts[1] > counts[0] + 2; i++) { // on a busy machine
            counts[1] = FreedBuffers.collect();
        }
        assertTrue(counts[1] <= counts[0] + 2, "direct buffers: " + Arrays.toString(counts));
    }
}
