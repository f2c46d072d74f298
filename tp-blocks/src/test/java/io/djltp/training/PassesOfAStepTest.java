package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.frozen;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** Forward and backward passes in any order have the results of DJL's own trainer. */
public class PassesOfAStepTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final double TOLERANCE = 1e-5;

    /** The shape of a training loop of the user's own. */
    private static void assertSame(TrainerKind kind, TrainingRun.Loop loop) {
        TrainingRun expected = run(TrainerKind.PLAIN, loop);
        run(kind, loop).assertSame(expected, TOLERANCE);
    }

    private static TrainingRun run(TrainerKind kind, TrainingRun.Loop loop) {
        boolean cut = kind.isParallel();
        Block block = sequence(linear(6), tanh(), first(cut, 8), tanh(), row(cut, 3));
        return TrainingRun.of(kind, block, new HalfSquareLoss(), new Shape(ROWS, FEATURES), loop);
    }

    private static NDList data(NDManager manager, int seed) {
        return new NDList(TrainingRun.random(manager, seed, ROWS, FEATURES));
    }

    private static NDList labels(NDManager manager, int seed) {
        return new NDList(TrainingRun.random(manager, 100 + seed, ROWS, 3));
    }

    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void twoLossesOfOneForwardPass(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 3; step++) {
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList output = trainer.forward(data(manager, step));
                            NDArray other = trainer.getLoss().evaluate(labels(manager, 7), output);
                            numbers.add(other.getFloat());
                            NDArray loss =
                                    trainer.getLoss().evaluate(labels(manager, step), output);
                            collector.backward(loss);
                            numbers.add(loss.getFloat());
                        }
                        trainer.step();
                    }
                });
    }

    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void severalForwardPassesBeforeABackwardPass(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 3; step++) {
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList a = trainer.forward(data(manager, step));
                            trainer.evaluate(data(manager, 20 + step));
                            NDList b = trainer.forward(data(manager, 10 + step));
                            NDArray second = trainer.getLoss().evaluate(labels(manager, step), b);
                            NDArray loss = trainer.getLoss().evaluate(labels(manager, step), a);
                            collector.backward(loss.add(second));
                            numbers.add(loss.getFloat());
                            numbers.add(second.getFloat());
                        }
                        trainer.step();
                    }
                });
    }

    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void gradientsOfTwoBatches(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 3; step++) {
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            for (int i = 0; i < 2; i++) {
                                NDList target = labels(manager, step + i);
                                NDList output =
                                        trainer.forward(data(manager, 3 * i + step), target);
                                NDArray loss = trainer.getLoss().evaluate(target, output);
                                collector.backward(loss);
                                numbers.add(loss.getFloat());
                            }
                        }
                        trainer.step();
                    }
                });
    }

    /** A parameter is used in one step, and not in the other. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void anotherNetworkInEachStep(TrainerKind kind) {
        TrainingRun.Loop loop =
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 4; step++) {
                        NDList x = data(manager, step);
                        x.head().set(new ai.djl.ndarray.index.NDIndex(":, 0"), step % 2);
                        numbers.add(
                                TrainingRun.backward(
                                        trainer, x.head(), labels(manager, step).head()));
                        trainer.step();
                    }
                };
        TrainingRun expected = branching(TrainerKind.PLAIN, loop);
        branching(kind, loop).assertSame(expected, TOLERANCE);
    }

    private static TrainingRun branching(TrainerKind kind, TrainingRun.Loop loop) {
        boolean cut = kind.isParallel();
        Block block =
                new GraphBlock(
                                new Shape(3),
                                (call, in) -> {
                                    NDArray x = in.head();
                                    boolean odd = x.get(0, 0).getFloat() > 0.5f;
                                    x = odd ? call.call("odd", x).tanh() : x;
                                    x = call.call("body", x);
                                    x = call.call("column", x).tanh();
                                    return new NDList(call.call("row", x));
                                })
                        .add("row", row(cut, 3), 8)
                        .add("column", first(cut, 8), 6)
                        .add("body", linear(6), FEATURES)
                        .add("odd", linear(FEATURES), FEATURES);
        return TrainingRun.of(kind, block, new HalfSquareLoss(), new Shape(ROWS, FEATURES), loop);
    }

    /** The operation changes, the parameters do not. */
    @Test(timeOut = 60_000)
    public void aSliceThatIsMisusedFromTheThirdStepOn() {
        for (ParallelMode mode : new ParallelMode[] {ParallelMode.TENSOR, ParallelMode.MIXED}) {
            AtomicInteger passes = new AtomicInteger();
            int ranks = 2;
            Block block =
                    sequence(
                            linear(6),
                            first(true, 8),
                            map(
                                    x ->
                                            passes.getAndIncrement() < 2 * ranks
                                                    ? x.tanh()
                                                    : x.softmax(-1).tanh()),
                            row(true, 3));
            passes.set(-1); // the first call asks for the shape
            Refusals.expect(
                    IllegalArgumentException.class,
                    () ->
                            TrainingRun.of(
                                    new TrainerKind(mode, ranks),
                                    block,
                                    new HalfSquareLoss(),
                                    new Shape(ROWS, FEATURES),
                                    PassesOfAStepTest::fiveSteps),
                    "softmax");
        }
    }

    private static void fiveSteps(Trainer trainer, NDManager manager, List<Float> numbers) {
        for (int step = 0; step < 5; step++) {
            NDArray x = data(manager, step).head();
            numbers.add(TrainingRun.backward(trainer, x, labels(manager, step).head()));
            trainer.step();
        }
    }

    /** What is thawed in the middle is known from then on. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aBodyThatIsThawed(TrainerKind kind) {
        TrainingRun[] runs = new TrainingRun[2];
        for (int i = 0; i < 2; i++) {
            Block body = frozen(linear(6));
            Block block = sequence(body, tanh(), head(3));
            runs[i] =
                    TrainingRun.of(
                            i == 0 ? TrainerKind.PLAIN : kind,
                            block,
                            new VocabParallelCrossEntropyLoss(),
                            new Shape(ROWS, FEATURES),
                            (trainer, manager, numbers) -> {
                                for (int step = 0; step < 4; step++) {
                                    body.freezeParameters(step < 2);
                                    numbers.add(
                                            TrainingRun.backward(
                                                    trainer,
                                                    data(manager, step).head(),
                                                    TrainingRun.labels(manager, step, ROWS, 3)));
                                    trainer.step();
                                }
                            });
        }
        runs[1].assertSame(runs[0], TOLERANCE);
    }
}
