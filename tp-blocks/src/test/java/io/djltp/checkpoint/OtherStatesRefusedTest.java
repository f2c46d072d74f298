package io.djltp.checkpoint;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import ai.djl.Model;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.checkpoint.StoppedRun.Task;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.function.Supplier;

/** A checkpoint of something else is refused, and the training goes on as if it were not there. */
public class OtherStatesRefusedTest {

    private final Path folder = TestFolder.create();

    private static Task task(Supplier<Block> network, Supplier<Optimizer> optimizer) {
        return new Task(
                network,
                Loss::l2Loss,
                optimizer,
                (manager, step) -> TrainingRun.random(manager, step, 7, 5),
                (manager, step) -> TrainingRun.random(manager, 50 + step, 7, 4));
    }

    private static Block network(int hidden) {
        return sequence(linear(6), head(hidden), row(true, 4));
    }

    private static Optimizer adam() {
        return Configs.adam(0.01f);
    }

    @BeforeClass
    public void save() throws IOException {
        Task task = task(() -> network(9), OtherStatesRefusedTest::adam);
        StoppedRun.saved(TENSOR_2, task, List.of(1), folder);
    }

    /** What is trained instead, and what the error says. */
    @DataProvider
    public Object[][] others() {
        Tracker rate = Tracker.fixed(0.1f);
        String optimizer = "another optimizer, Adam with [mean, variance], and the trainer has ";
        return new Object[][] {
            other(
                    () -> network(10),
                    OtherStatesRefusedTest::adam,
                    "another network: 02ColumnParallelLinear_weight (10, 6) float32 is"
                            + " 02ColumnParallelLinear_weight (9, 6) float32 in the checkpoint",
                    "02ColumnParallelLinear_bias (10) float32 is",
                    "03RowParallelLinear_weight (4, 10) float32 is",
                    "Nothing has been changed"),
            other(
                    () -> sequence(linear(6), linear(6), head(9), row(true, 4)),
                    OtherStatesRefusedTest::adam,
                    "02Linear_weight (6, 6) float32 is in the network only",
                    "03ColumnParallelLinear_weight (9, 6) float32 is in the network only",
                    "03RowParallelLinear_weight (4, 9) float32 is not in the network"),
            other(() -> network(9), () -> Configs.sgd(0.1f), optimizer + "Sgd:"),
            other(
                    () -> network(9),
                    () -> Configs.sgd(0.1f, 0.9f),
                    optimizer + "Sgd with [momentum]"),
            other(
                    () -> network(9),
                    () -> Optimizer.adamW().optLearningRateTracker(rate).build(),
                    optimizer + "AdamW with [mean, variance]")
        };
    }

    private static Object[] other(
            Supplier<Block> network, Supplier<Optimizer> optimizer, String... texts) {
        return new Object[] {task(network, optimizer), texts};
    }

    @Test(dataProvider = "others", timeOut = 60_000)
    public void anotherTraining(Task task, String[] texts) {
        StoppedRun.assertRefused(TENSOR_2, task, folder, 1, texts);
    }

    @Test(timeOut = 60_000)
    public void otherTypes() {
        try (Model model = Model.newInstance("net")) {
            model.setDataType(DataType.FLOAT64);
            model.setBlock(network(9));
            DefaultTrainingConfig config = Configs.of(Loss.l2Loss(), adam());
            try (ParallelTrainer trainer = (ParallelTrainer) TENSOR_2.open(model, config);
                    TrainingState state = new TrainingState(trainer)) {
                trainer.initialize(new Shape(7, 5));
                String weight = "01Linear_weight (6, 5) float";
                Refusals.throwsArgument(
                        () -> StoppedRun.restore(state, folder, 1),
                        weight + "64 is " + weight + "32 in");
            }
        }
    }

    @Test(timeOut = 60_000)
    public void betweenAPassAndItsStep() {
        Task task = task(() -> network(9), OtherStatesRefusedTest::adam);
        StoppedRun.run(
                TENSOR_2,
                task,
                42,
                0,
                1,
                (trainer, state, step) -> {
                    TrainingRun.backward(
                            trainer,
                            task.data().make(trainer.getManager(), 0),
                            task.labels().make(trainer.getManager(), 0));
                    for (Assert.ThrowingRunnable each :
                            List.<Assert.ThrowingRunnable>of(
                                    () -> StoppedRun.begin(state, null),
                                    () -> StoppedRun.restore(state, folder, 1))) {
                        Refusals.throwsState(each, "between two steps");
                    }
                    trainer.step();
                });
    }
}
