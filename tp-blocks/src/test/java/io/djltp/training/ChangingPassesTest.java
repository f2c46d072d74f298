package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.frozen;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainingRun.backward;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.translate.NoopTranslator;

import io.djltp.layout.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.function.UnaryOperator;

/** A network that computes something else of a later batch is looked at again. */
public class ChangingPassesTest {

    private static final int TOKENS = 3;
    private static final int FEATURES = 6;

    private boolean changed; // between two steps, read by all ranks

    private static NDArray mean(NDArray x, int axis) {
        return x.sub(x.mean(new int[] {axis}, true));
    }

    private static Object[] change(
            String name, UnaryOperator<NDArray> before, UnaryOperator<NDArray> after) {
        return new Object[] {name, before, after};
    }

    /** As many operations, of the same names, with results of the same shapes. */
    @DataProvider
    public Object[][] changes() {
        return new Object[][] {
            change("another operation", NDArray::tanh, x -> x.softmax(2)),
            change("a flip", NDArray::tanh, x -> x.flip(2)),
            change("another axis", x -> x.softmax(1), x -> x.softmax(2)),
            change("another axis of length 1", x -> mean(x, 1), x -> mean(x, 2)),
            change("the sum of other elements", x -> x.cumSum(1), x -> x.cumSum(2)),
        };
    }

    private Block network(UnaryOperator<NDArray> before, UnaryOperator<NDArray> after) {
        return sequence(
                first(true, 12), map(x -> (changed ? after : before).apply(x)), row(true, 5));
    }

    private static NDList random(NDManager manager, int seed, int rows, int tokens, int features) {
        return new NDList(TrainingRun.random(manager, seed, rows, tokens, features));
    }

    private static void assertRefused(Assert.ThrowingRunnable run) {
        expect(RuntimeException.class, run, "does not commute");
    }

    @Test(dataProvider = "changes", timeOut = 60_000)
    public void aStepOfTheSameShape(
            String name, UnaryOperator<NDArray> before, UnaryOperator<NDArray> after) {
        changed = false;
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(network(before, after));
            try (Trainer trainer = trainer(model)) {
                NDList labels = random(manager, 9, 2, TOKENS, 5);
                for (int i = 0; i < 3; i++) {
                    NDList data = random(manager, i, 2, TOKENS, FEATURES);
                    backward(trainer, data.head(), labels.head());
                    trainer.step();
                }
                changed = true;
                NDList data = random(manager, 3, 2, TOKENS, FEATURES);
                assertRefused(() -> backward(trainer, data.head(), labels.head()));
            }
        }
    }

    private static Trainer trainer(Model model) {
        Trainer trainer =
                new ParallelTrainer(
                        model,
                        new DefaultTrainingConfig(new HalfSquareLoss()),
                        Ranks.config(ParallelMode.TENSOR, 2));
        trainer.initialize(new Shape(2, TOKENS, FEATURES));
        return trainer;
    }

    private static NDArray ofLong(NDArray x) {
        return x.getShape().get(1) > TOKENS ? x.softmax(2) : x.tanh();
    }

    /** A softmax of the features of a long sequence only. */
    @Test(timeOut = 60_000)
    public void aPredictionOfAnotherShape() throws Exception {
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(
                    sequence(first(true, 12), map(ChangingPassesTest::ofLong), row(true, 5)));
            Shape shape = new Shape(2, TOKENS, FEATURES);
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, shape);
            try (ParallelPredictor<NDList, NDList> predictor =
                    new ParallelPredictor<>(
                            model, new NoopTranslator(), Ranks.config(ParallelMode.TENSOR, 2))) {
                for (int i = 0; i < 2; i++) {
                    predictor.predict(random(manager, i, 2, TOKENS, FEATURES));
                }
                expect(
                        Exception.class,
                        () -> predictor.predict(random(manager, 1, 2, 4, FEATURES)),
                        "does not commute");
                predictor.predict(random(manager, 2, 2, TOKENS, FEATURES));
            }
        }
    }

    /** What is frozen is not in the graph of later steps either. */
    @Test(timeOut = 60_000)
    public void anEvaluationAndAStepOfAnotherShape() {
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            Block column = frozen(first(true, 12));
            model.setBlock(sequence(column, map(ChangingPassesTest::ofLong), row(true, 5)));
            try (Trainer trainer = trainer(model)) {
                NDArray data = random(manager, 1, 2, TOKENS, FEATURES).head();
                trainer.evaluate(new NDList(data));
                backward(trainer, data, random(manager, 2, 2, TOKENS, 5).head());
                trainer.step();
                NDArray more = random(manager, 3, 2, 4, FEATURES).head();
                NDArray labels = random(manager, 4, 2, 4, 5).head();
                assertRefused(() -> trainer.evaluate(new NDList(more)));
                assertRefused(() -> backward(trainer, more, labels));
            }
        }
    }

    /** A rank of which the rows alone are one throws, and the others wait for it no longer. */
    @Test(timeOut = 60_000)
    public void whatOneRankThrowsEndsTheOthers() {
        Block block =
                sequence(
                        first(true, 12),
                        map(x -> x.getShape().get(0) == 1 ? x.softmax(2) : x.tanh()),
                        row(true, 5));
        TrainingRun.of(
                MESH_2X2,
                block,
                new HalfSquareLoss(),
                new Shape(4, TOKENS, FEATURES),
                (trainer, manager, numbers) -> {
                    for (int rows : new int[] {4, 3}) {
                        NDArray x = TrainingRun.random(manager, rows, rows, TOKENS, FEATURES);
                        NDArray labels = TrainingRun.random(manager, 9, rows, TOKENS, 5);
                        if (rows == 3) {
                            expect(
                                    RankFailedException.class,
                                    () -> backward(trainer, x, labels),
                                    "does not commute");
                        } else {
                            backward(trainer, x, labels);
                            trainer.step();
                        }
                    }
                });
    }
}
