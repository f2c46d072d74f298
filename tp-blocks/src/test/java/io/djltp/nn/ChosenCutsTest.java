package io.djltp.nn;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.internal.torch.Autograd;
import io.djltp.layout.ParallelMode;
import io.djltp.parameters.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.CutNetwork;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/**
 * Networks that are cut as their user has chosen are those of plain DJL: initial values bit for
 * bit, outputs, every gradient, and the parameters after five steps. What several ranks have stays
 * the same on them.
 */
public class ChosenCutsTest {

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
        List<Object[]> cases = new ArrayList<>();
        for (CutNetwork network : CutNetwork.values()) {
            for (int ranks = 1; ranks <= 4; ranks++) {
                for (boolean adam : new boolean[] {false, true}) {
                    cases.add(new Object[] {network, ranks, adam});
                }
            }
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void fiveStepsAreThoseOfPlainDjl(CutNetwork network, int ranks, boolean adam) {
        Run plain = train(TrainerKind.PLAIN, network.create(0), adam);
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
        Run actual = train(kind, network.create(ranks), adam);
        ArrayAssert.assertAllBitEqual(actual.start, plain.start, "start");
        // fp32 sums in another order; Adam divides by the root of squares that start near zero
        double tolerance = adam ? 1e-4 : 1e-5;
        assertClose(actual.outputs, plain.outputs, tolerance, "output of step ");
        assertClose(actual.gradients, plain.gradients, 2e-6, "gradient ");
        assertClose(actual.end, plain.end, tolerance, "parameter ");
    }

    private static void assertClose(
            List<float[]> actual, List<float[]> expected, double tolerance, String what) {
        Assert.assertEquals(actual.size(), expected.size(), what);
        ArrayAssert.assertAllClose(actual, expected, tolerance, what);
    }

    private static Run train(TrainerKind kind, Block block, boolean adam) {
        Run run = new Run();
        Engine.getInstance().setRandomSeed(15);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block);
            Tracker rate = Tracker.fixed(adam ? 0.02f : 0.1f);
            Optimizer optimizer =
                    adam
                            ? Optimizer.adam().optLearningRateTracker(rate).build()
                            : Optimizer.sgd()
                                    .setLearningRateTracker(rate)
                                    .optMomentum(0.9f)
                                    .build();
            DefaultTrainingConfig config = Configs.of(new HalfSquareLoss(), optimizer);
            try (Trainer trainer = kind.open(model, config)) {
                trainer.initialize(new Shape(ROWS, CutNetwork.FEATURES));
                for (Parameter parameter : block.getParameters().values()) {
                    run.start.add(whole(manager, trainer, parameter, false));
                }
                for (int step = 0; step < 5; step++) {
                    NDList data =
                            new NDList(
                                    TrainingRun.random(manager, step, ROWS, CutNetwork.FEATURES));
                    NDList labels =
                            new NDList(
                                    TrainingRun.random(
                                            manager, 50 + step, ROWS, CutNetwork.OUTPUTS));
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList output = trainer.forward(data, labels);
                        run.outputs.add(output.singletonOrThrow().toFloatArray());
                        collector.backward(trainer.getLoss().evaluate(labels, output));
                    }
                    for (Parameter parameter : block.getParameters().values()) {
                        if (step == 0) {
                            run.gradients.add(whole(manager, trainer, parameter, true));
                        }
                    }
                    trainer.step();
                }
                checkReplicas(trainer);
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
        ShardingStrategy strategy = strategy(trainer.getModel().getBlock(), parameter);
        NDArray whole = manager.zeros(parameter.getShape());
        for (int rank = 0; rank < ranks; rank++) {
            NDArray value = parallel.getParameterStore(rank).getValue(parameter, null, true);
            if (strategy.isReplicated()) {
                return (gradient ? Autograd.gradient(value) : value).toFloatArray();
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
    private static void checkReplicas(Trainer trainer) {
        if (!(trainer instanceof ParallelTrainer)) {
            return;
        }
        ParallelTrainer parallel = (ParallelTrainer) trainer;
        int ranks = parallel.getRanks().size();
        for (Parameter parameter : trainer.getModel().getBlock().getParameters().values()) {
            ShardingStrategy strategy = strategy(trainer.getModel().getBlock(), parameter);
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
