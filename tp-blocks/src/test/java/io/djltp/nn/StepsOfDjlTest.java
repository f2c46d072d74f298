package io.djltp.nn;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.scattered;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.internal.torch.Autograd;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.CutNetwork;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TestCases;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;

/**
 * Steps of layers on ranks compute what those of DJL's layers compute: the same start, outputs,
 * gradients and parameters; and replicas stay equal.
 */
public class StepsOfDjlTest {

    private static final int ROWS = 6;

    /** What a training computes. */
    private static final class Run {
        private final List<float[]> start = new ArrayList<>();
        private final List<float[]> outputs = new ArrayList<>();
        private final List<float[]> gradients = new ArrayList<>();
        private final List<float[]> end = new ArrayList<>();
    }

    @DataProvider
    public Object[][] networks() {
        return TestCases.product(
                CutNetwork.values(), new Integer[] {1, 2, 3, 4}, new Boolean[] {false, true});
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void fiveStepsOfChosenCuts(CutNetwork network, int ranks, boolean adam) {
        Tracker rate = Tracker.fixed(0.1f);
        Supplier<Optimizer> optimizer =
                adam
                        ? () -> Configs.adam(0.02f)
                        : () ->
                                Optimizer.sgd()
                                        .setLearningRateTracker(rate)
                                        .optMomentum(0.9f)
                                        .build();
        Shape shape = new Shape(ROWS, CutNetwork.FEATURES);
        Run plain = train(PLAIN, network.create(0), optimizer.get(), 5, shape);
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
        Run actual = train(kind, network.create(ranks), optimizer.get(), 5, shape);
        // fp32 sums in another order; Adam divides by the root of squares that start near zero
        assertSame(actual, plain, adam ? 1e-4 : 1e-5, 2e-6);
    }

    /** Conformance case 15: Linear(10, 16), ReLU, Linear(16, 12). */
    @Test(timeOut = 60_000)
    public void twoStepsOfAPerceptron() {
        Shape shape = new Shape(8, 10);
        Block dense = sequence(linear(16), relu(), linear(12));
        Run expected = train(PLAIN, dense, Configs.sgd(0.25f), 2, shape);
        for (int ranks = 1; ranks <= 4; ranks++) {
            TrainerKind tensor = new TrainerKind(ParallelMode.TENSOR, ranks);
            for (TrainerKind kind : List.of(tensor, new TrainerKind(ParallelMode.MIXED, ranks))) {
                Block cut = sequence(head(16), relu(), scattered(12));
                Run actual = train(kind, cut, Configs.sgd(0.25f), 2, shape);
                // fp32: sums of 16 products in another order, over two layers
                assertSame(actual, expected, 1e-6, 1e-6);
            }
            Block tokens =
                    sequence(
                            new SequenceScatter(),
                            SequenceParallelTest.column(true, 16),
                            relu(),
                            SequenceParallelTest.row(true, 12, true),
                            new SequenceGather());
            Run actual = train(tensor, tokens, Configs.sgd(0.25f), 2, shape);
            assertClose(actual.outputs, expected.outputs, 1e-6, "output of step ");
            assertClose(actual.end, expected.end, 1e-6, "parameter "); // and of the gradients
        }
    }

    private static void assertSame(Run actual, Run expected, double tolerance, double ofGradients) {
        ArrayAssert.assertAllBitEqual(actual.start, expected.start, "start");
        assertClose(actual.outputs, expected.outputs, tolerance, "output of step ");
        assertClose(actual.gradients, expected.gradients, ofGradients, "gradient ");
        assertClose(actual.end, expected.end, tolerance, "parameter ");
    }

    private static void assertClose(
            List<float[]> actual, List<float[]> expected, double tolerance, String what) {
        Assert.assertEquals(actual.size(), expected.size(), what);
        ArrayAssert.assertAllClose(actual, expected, tolerance, what);
    }

    private static Run train(
            TrainerKind kind, Block block, Optimizer optimizer, int steps, Shape shape) {
        Run run = new Run();
        Engine.getInstance().setRandomSeed(15);
        try (Model model = Blocks.model(block);
                NDManager manager = NDManager.newBaseManager()) {
            DefaultTrainingConfig config = Configs.of(new HalfSquareLoss(), optimizer);
            try (Trainer trainer = kind.open(model, config)) {
                trainer.initialize(shape);
                long outputs = block.getOutputShapes(new Shape[] {shape})[0].get(1);
                for (Parameter parameter : block.getParameters().values()) {
                    run.start.add(whole(manager, trainer, parameter, false));
                }
                for (int step = 0; step < steps; step++) {
                    NDList data = new NDList(TrainingRun.random(manager, step, shape.getShape()));
                    NDList labels =
                            new NDList(
                                    TrainingRun.random(manager, 50 + step, shape.get(0), outputs));
                    TrainingRun.backward(
                            trainer,
                            data,
                            labels,
                            output -> run.outputs.add(output.head().toFloatArray()));
                    for (Parameter parameter : block.getParameters().values()) {
                        if (step == 0) {
                            run.gradients.add(whole(manager, trainer, parameter, true));
                        }
                    }
                    trainer.step();
                }
                if (trainer instanceof ParallelTrainer parallel) {
                    checkReplicas(parallel);
                }
            }
            run.end.addAll(TrainingRun.weights(block));
        }
        return run;
    }

    /** Returns a value, or a gradient, of which the ranks have summands. */
    private static float[] whole(
            NDManager manager, Trainer trainer, Parameter parameter, boolean gradient) {
        if (!(trainer instanceof ParallelTrainer)) {
            NDArray array = parameter.getArray();
            return (gradient ? array.getGradient() : array).toFloatArray();
        }
        ParallelTrainer parallel = (ParallelTrainer) trainer;
        int ranks = parallel.getRanks().size();
        boolean ofRows = gradient && parallel.getRanks().getContext(0).getMesh().isOverlaid();
        ShardingStrategy strategy = strategy(trainer.getModel().getBlock(), parameter);
        NDArray whole = manager.zeros(parameter.getShape());
        for (int rank = 0; rank < ranks; rank++) {
            NDArray value = parallel.getParameterStore(rank).getValue(parameter, null, true);
            if (strategy.isReplicated() && !ofRows) {
                return (gradient ? Autograd.gradient(value) : value).toFloatArray();
            }
            if (strategy.isReplicated()) {
                whole.addi(Autograd.gradient(value));
                continue;
            }
            NDArray part = gradient ? manager.zeros(parameter.getShape()) : whole;
            NDArray shard = gradient ? Autograd.gradient(value) : Autograd.detach(value, manager);
            strategy.gather(shard, part, rank, ranks);
            if (gradient) {
                shard.close();
                whole.addi(part);
            }
        }
        return whole.toFloatArray();
    }

    private static ShardingStrategy strategy(Block block, Parameter parameter) {
        if (block.getDirectParameters().values().contains(parameter)) {
            return block instanceof ShardedBlock
                    ? ((ShardedBlock) block).getShardingStrategy(parameter)
                    : ShardingStrategy.replicate();
        }
        for (Block child : block.getChildren().values()) {
            ShardingStrategy strategy = strategy(child, parameter);
            if (strategy != null) {
                return strategy;
            }
        }
        return null;
    }

    /** Bit for bit: each rank has updated its own. */
    private static void checkReplicas(ParallelTrainer parallel) {
        int ranks = parallel.getRanks().size();
        for (Parameter parameter : parallel.getModel().getBlock().getParameters().values()) {
            ShardingStrategy strategy = strategy(parallel.getModel().getBlock(), parameter);
            if (ranks == 1 || strategy.isReplicated()) {
                continue;
            }
            Cut cut = strategy.cut(parameter.getShape(), ranks);
            for (Segment segment : cut.getSegments()) {
                float[] first = null;
                for (int rank : segment.ranks()) {
                    NDArray shard =
                            parallel.getParameterStore(rank).getValue(parameter, null, true);
                    long place = segment.getPlace(rank);
                    String range = place + ":" + (place + segment.range().length());
                    String index = strategy.axis(parameter.getShape()) == 0 ? range : ":, " + range;
                    float[] values = shard.get(index).toFloatArray();
                    first = first == null ? values : first;
                    ArrayAssert.assertBitEqual(values, first, parameter.getName() + segment);
                }
            }
        }
    }
}
