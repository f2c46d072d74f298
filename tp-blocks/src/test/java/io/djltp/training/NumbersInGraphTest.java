package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertTrue;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.NDScope;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.transformer.BertBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.parameters.BlockWalk;
import io.djltp.testing.Configs;
import io.djltp.testing.FreedBuffers;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.List;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * A number that a pass computes with is in Java memory, which libtorch's graph refers to and the
 * collector does not know of. What the backward pass computes does not depend on the collector.
 */
public class NumbersInGraphTest {

    /** Returns blocks that compute with numbers. */
    @DataProvider
    public Object[][] blocks() {
        return new Object[][] {
            {"mul", function(x -> x.mul(2f))},
            {"swish", (Supplier<Block>) () -> Activation.swishBlock(1.5f)},
            {"div in a manager of its own", function(NumbersInGraphTest::inManagerOfItsOwn)},
            {"div in a scope of its own", function(NumbersInGraphTest::inScopeOfItsOwn)},
        };
    }

    private static Supplier<Block> function(Function<NDArray, NDArray> function) {
        return () -> LambdaBlock.singleton(function, "numbers");
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

    /** The losses and the weights are those of a run that the collector leaves alone. */
    @Test(dataProvider = "blocks", timeOut = 60_000)
    public void testBlocks(String name, Supplier<Block> numbers) {
        Supplier<Block> net = () -> sequence(linear(5), numbers.get(), linear(3));
        Network.Batches batches = Network.regression(6, 4, 3);
        for (TrainerKind kind : List.of(TENSOR_1, TENSOR_3, DATA_3)) {
            assertNotChanged(kind, net, Loss.l2Loss(), batches, 3);
        }
    }

    /** DJL divides the scores of its attention by a number, and multiplies its mask with one. */
    @Test(timeOut = 60_000)
    public void testBert() {
        Supplier<Block> net =
                () -> {
                    BertBlock bert =
                            BertBlock.builder()
                                    .nano()
                                    .optTransformerBlockCount(1)
                                    .setTokenDictionarySize(20)
                                    .optMaxSequenceLength(5)
                                    .build();
                    BlockWalk.of(bert, (part, path, cut) -> withoutDropout(part));
                    return sequence(bert).add(x -> new NDList(x.get(1)), "pooled").add(linear(7));
                };
        Network.Batches batches =
                (manager, step) -> {
                    NDArray ids = labels(manager, step, 20, 20).reshape(4, 5);
                    NDArray types = labels(manager, step, 20, 2).reshape(4, 5);
                    NDList labels = new NDList(labels(manager, step, 4, 7));
                    return new NDList[] {new NDList(ids, types, ids.onesLike()), labels};
                };
        for (TrainerKind kind : List.of(TENSOR_1, TENSOR_3)) {
            assertNotChanged(kind, net, Loss.softmaxCrossEntropyLoss(), batches, 3);
        }
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

    /** After 1,000 steps there are as many buffers as after 10: those of a step are let go. */
    @Test(timeOut = 60_000)
    public void testLetsGo() {
        Block net = sequence(linear(5), Activation.swishBlock(1.5f));
        long[] counts = new long[2];
        TrainingRun.of(
                TENSOR_2,
                net,
                Loss.l2Loss(),
                new Shape(6, 4),
                (trainer, manager, numbers) -> {
                    for (int step = 1; step <= 1000; step++) {
                        try (NDManager batch = manager.newSubManager()) {
                            NDArray data = random(batch, 1, 6, 4);
                            NDArray target = random(batch, 2, 6, 5);
                            backward(trainer, data, target);
                            if (step % 2 == 0) { // a pass that no backward pass follows
                                trainer.forward(new NDList(data));
                            }
                            trainer.step();
                        }
                        if (step == 10 || step == 1000) {
                            counts[step / 1000] = FreedBuffers.collect();
                        }
                    }
                });
        assertTrue(counts[1] <= counts[0] + 2, "direct buffers: " + Arrays.toString(counts));
    }

    private static void assertNotChanged(
            TrainerKind kind, Supplier<Block> net, Loss loss, Network.Batches batches, int steps) {
        List<float[]> expected = train(kind, net.get(), loss, batches, steps, () -> {});
        List<float[]> actual =
                train(kind, net.get(), loss, batches, steps, FreedBuffers::overwrite);
        assertAllBitEqual(actual, expected, kind + ", parameter");
    }

    private static List<float[]> train(
            TrainerKind kind,
            Block net,
            Loss loss,
            Network.Batches batches,
            int steps,
            Runnable beforeBackward) {
        Engine.getInstance().setRandomSeed(42);
        DefaultTrainingConfig config = Configs.of(loss, Configs.sgd(0.01f));
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(net);
            try (Trainer trainer = kind.open(model, config)) {
                NDList[] first = batches.make(manager, 0);
                trainer.initialize(first[0].getShapes());
                for (int step = 0; step < steps; step++) {
                    NDList[] batch = batches.make(manager, step);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList output = trainer.forward(batch[0], batch[1]);
                        NDArray value = trainer.getLoss().evaluate(batch[1], output);
                        NDArray scaled = value.mul(0.5f);
                        beforeBackward.run();
                        collector.backward(scaled);
                        assertTrue(Float.isFinite(value.getFloat()), "loss of " + step);
                    }
                    trainer.step();
                }
            }
            return weights(net);
        }
    }
}
