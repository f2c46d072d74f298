package io.djltp.internal.gradient;

import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertSame;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.Trainer;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.TestBackend;
import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.FlatGradients;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.bytedeco.pytorch.Storage;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** The gradients of many parameters are summed by few operations, and as DJL computes them. */
public class GradientBucketsTest {

    private static final int ROWS = 6;
    private static final int STEPS = 3; // after the third, replicas are not compared
    private static final double TOLERANCE = 1e-5;

    private static Block layers(int... units) {
        SequentialBlock block = new SequentialBlock();
        for (int each : units) {
            block.add(linear(each)).add(Activation::tanh);
        }
        return block;
    }

    private static int[] tenTimes(int units) {
        int[] all = new int[10];
        Arrays.fill(all, units);
        return all;
    }

    private static TrainingRun run(
            TrainerKind kind, Block block, int width, TrainingRun.Loop loop) {
        return TrainingRun.of(kind, block, new HalfSquareLoss(), new Shape(ROWS, width), loop);
    }

    /** Trains, and notes what the last step has communicated. */
    private static TrainingRun.Loop steps(
            int number, int in, int out, List<CollectiveCounts> last) {
        return (trainer, manager, numbers) -> {
            for (int step = 0; step < number; step++) {
                NDArray data = random(manager, step, ROWS, in);
                NDArray labels = random(manager, 100 + step, ROWS, out);
                numbers.add(backward(trainer, data, labels));
                CollectiveCounts before = counts(trainer);
                trainer.step();
                if (before != null) {
                    last.clear();
                    last.add(counts(trainer).minus(before));
                }
            }
        };
    }

    private static CollectiveCounts counts(Trainer trainer) {
        return trainer instanceof ParallelTrainer parallel ? parallel.getCollectiveCounts() : null;
    }

    /** Twenty parameters, one operation, and no byte more than they have. */
    @Test(timeOut = 60_000)
    public void manySmallParametersAreOneOperation() {
        List<CollectiveCounts> last = new ArrayList<>();
        TrainingRun.Loop loop = steps(STEPS, 12, 12, last);
        TrainingRun expected = run(PLAIN, layers(tenTimes(12)), 12, loop);
        for (int ranks = 1; ranks <= 3; ranks++) {
            TrainerKind kind = new TrainerKind(ParallelMode.DATA, ranks);
            run(kind, layers(tenTimes(12)), 12, loop).assertSame(expected, TOLERANCE);
            assertEquals(last.get(0).toString(), ranks == 1 ? "none" : "1 all-reduce");
            assertEquals(last.get(0).bytes(), ranks == 1 ? 0 : 10 * (12 * 13) * 4L);
        }
    }

    @DataProvider
    public Object[][] largeNetworks() {
        int[] twenty = new int[20];
        Arrays.fill(twenty, 600);
        return new Object[][] {
            {"27.5 MiB, of 1.4 MiB at most: two buckets", twenty, "2 all-reduce"},
            {"two weights of 4 MiB alone, the biases", new int[] {1024, 1024}, "3 all-reduce"},
        };
    }

    @Test(dataProvider = "largeNetworks", timeOut = 60_000)
    public void aBucketIsFullAt25Mebibytes(String name, int[] units, String operations) {
        List<CollectiveCounts> last = new ArrayList<>();
        TrainingRun.Loop loop = steps(STEPS, units[0], units[0], last);
        TrainingRun expected = run(PLAIN, layers(units), units[0], loop);
        TrainerKind kind = DATA_2;
        run(kind, layers(units), units[0], loop).assertSame(expected, TOLERANCE);
        assertEquals(last.get(0).toString(), operations, name);
        long elements = (long) units.length * units[0] * (units[0] + 1);
        assertEquals(last.get(0).bytes(), 4 * elements);
    }

    /** What is cut has its gradient whole: only what all ranks have is summed. */
    @Test(timeOut = 60_000)
    public void nothingIsSummedOfWhatIsCut() {
        List<CollectiveCounts> last = new ArrayList<>();
        TrainingRun.Loop loop = steps(STEPS, 12, 5, last);
        TrainerKind kind = MIXED_3;
        List<TrainingRun> runs = new ArrayList<>();
        for (TrainerKind each : List.of(PLAIN, kind)) {
            SequentialBlock block = (SequentialBlock) layers(12, 12);
            block.add(gathered(5));
            runs.add(run(each, block, 12, loop));
        }
        runs.get(1).assertSame(runs.get(0), TOLERANCE);
        assertEquals(last.get(0).toString(), "1 all-reduce");
        assertEquals(last.get(0).bytes(), 2 * (12 * 13) * 4L);
    }

    /** Who is frozen and thawed leaves and joins the bucket. */
    @Test(timeOut = 60_000)
    public void freezingMakesOtherBuckets() {
        List<CollectiveCounts> last = new ArrayList<>();
        TrainingRun.Loop some = steps(STEPS, 12, 12, last);
        List<Long> bytes = new ArrayList<>();
        TrainingRun.Loop loop =
                (trainer, manager, numbers) -> {
                    Block layer = trainer.getModel().getBlock().getChildren().valueAt(2);
                    for (boolean frozen : new boolean[] {false, true, false}) {
                        layer.freezeParameters(frozen);
                        some.run(trainer, manager, numbers);
                        last.forEach(counts -> bytes.add(counts.bytes()));
                    }
                };
        TrainingRun expected = run(PLAIN, layers(12, 12, 12), 12, loop);
        TrainerKind kind = DATA_2;
        run(kind, layers(12, 12, 12), 12, loop).assertSame(expected, TOLERANCE);
        long layer = 12 * 13 * 4;
        assertEquals(bytes, List.of(3 * layer, 2 * layer, 3 * layer));
    }

    /** A rank that waits says for what. */
    @Test(timeOut = 60_000)
    public void theOperationNamesItsParameters() {
        run(
                DATA_2,
                layers(tenTimes(4)),
                4,
                (trainer, manager, numbers) -> {
                    steps(2, 4, 4, new ArrayList<>()).run(trainer, manager, numbers);
                    List<String> entries =
                            AbstractCommunicator.of(
                                            ((ParallelTrainer) trainer)
                                                    .getRanks()
                                                    .getContext(1)
                                                    .getDataGroup())
                                    .getRecorder()
                                    .entries();
                    assertTrue(
                            entries.stream()
                                    .anyMatch(
                                            entry ->
                                                    entry.contains(
                                                            "the gradients of 01Linear_weight,"
                                                                    + " 01Linear_bias,"
                                                                    + " 03Linear_weight,"
                                                                    + " 03Linear_bias and 16"
                                                                    + " more")),
                            entries.toString());
                });
    }

    /** A rank that fails frees no gradient that another operation is still to sum. */
    @Test(timeOut = 60_000)
    public void aFailureFreesNothingThatIsOnItsWay() {
        run(
                DATA_1,
                layers(701, 1_003, 701, 1_003),
                12,
                (trainer, manager, numbers) -> {
                    backward(
                            trainer, random(manager, 1, ROWS, 12), random(manager, 2, ROWS, 1_003));
                    List<Communicator> group = TestBackend.TCP.create(2, RankThreads.TIMEOUT);
                    ParallelParameters parameters =
                            ((ParallelTrainer) trainer).getState().getParameters();
                    List<GradientBuckets.Member> members = new ArrayList<>();
                    for (int number : new int[] {2, 4, 6}) { // the weights of more than 2 MiB
                        Parameter parameter = TrainingRun.parameter(trainer, number);
                        NDArray held = parameters.getStores().get(0).getHeld(parameter);
                        members.add(
                                new GradientBuckets.Member(
                                        parameter, held, group.get(0), null, true));
                    }
                    try (GradientBuckets buckets = new GradientBuckets(parameters);
                            NDArray last = Autograd.gradient(members.get(2).value())) {
                        buckets.start(members);
                        try (FlatGradients first =
                                FlatGradients.over(members.get(0).value().duplicate(), 2, 1)) {
                            group.get(1)
                                    .reduceScatter(
                                            first.getAll(),
                                            first.getOwn(),
                                            first.getShares(),
                                            ReduceOp.SUM)
                                    .await(); // and not in the others
                        }
                        IllegalStateException failure = new IllegalStateException("of a rank");
                        assertSame(
                                expectThrows(
                                        IllegalStateException.class,
                                        () ->
                                                buckets.finish(
                                                        (member, gradient, range) -> {
                                                            throw failure;
                                                        },
                                                        () -> {})),
                                failure);
                        assertTrue(references(last) > 1);
                        group.get(0).abort(failure);
                        group.forEach(Communicator::close);
                    }
                });
    }

    private static long references(NDArray array) {
        try (Storage storage = TensorView.of(array).tensor().storage()) {
            return storage.use_count();
        }
    }
}
