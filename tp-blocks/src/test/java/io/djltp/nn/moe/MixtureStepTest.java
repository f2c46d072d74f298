package io.djltp.nn.moe;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;

import io.djltp.internal.torch.Autograd;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelContext;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/**
 * Steps with Adam and with the losses of the router: the losses, every gradient of the first pass,
 * and the parameters after three steps are those of DJL's own trainer.
 */
public class MixtureStepTest {

    private static final int ROWS = 7;
    private static final int FEATURES = 4;

    /** What training has shown. */
    private static final class Result {
        private final List<Float> losses = new ArrayList<>();
        private final List<float[]> gradients = new ArrayList<>();
        private List<float[]> weights;
    }

    @DataProvider
    public static Object[][] kinds() {
        List<Object[]> kinds = new ArrayList<>();
        for (int ranks = 1; ranks <= 4; ranks++) {
            kinds.add(new Object[] {new TrainerKind(ParallelMode.TENSOR, ranks)});
            kinds.add(new Object[] {new TrainerKind(ParallelMode.MIXED, ranks)});
        }
        kinds.add(new Object[] {new TrainerKind(ParallelMode.DATA, 3)});
        kinds.add(new Object[] {TrainerKind.mesh(2, 2)});
        return kinds.toArray(new Object[0][]);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void twoChoices(TrainerKind kind) {
        MixtureOfExperts.Builder options =
                MixtureOfExperts.builder()
                        .setExperts(5)
                        .setHiddenFeatures(6)
                        .optCapacityFactor(0.8)
                        .optGated(true);
        assertSame(run(kind, options), run(TrainerKind.PLAIN, options), 1e-4);
    }

    /** Half of the modes, for the other options are tested elsewhere. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void oneChoiceExchanged(TrainerKind kind) {
        MixtureOfExperts.Builder options =
                MixtureOfExperts.builder()
                        .setExperts(4)
                        .setHiddenFeatures(3)
                        .optTopK(1)
                        .optExchangeTokens(kind.ranks() % 2 == 0);
        assertSame(run(kind, options), run(TrainerKind.PLAIN, options), 1e-4);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void slicesOfExperts(TrainerKind kind) {
        MixtureOfExperts.Builder options =
                MixtureOfExperts.builder()
                        .setExperts(3)
                        .setHiddenFeatures(6)
                        .optStrategy(ShardingStrategy.tensorParallel())
                        .optCapacityFactor(0.8);
        assertSame(run(kind, options), run(TrainerKind.PLAIN, options), 1e-4);
    }

    private static void assertSame(Result actual, Result expected, double tolerance) {
        for (int i = 0; i < expected.losses.size(); i++) {
            ArrayAssert.assertClose(
                    new float[] {actual.losses.get(i)},
                    new float[] {expected.losses.get(i)},
                    1e-5,
                    "loss " + i);
        }
        for (int i = 0; i < expected.gradients.size(); i++) {
            ArrayAssert.assertClose(
                    actual.gradients.get(i), expected.gradients.get(i), 1e-5, "gradient " + i);
            ArrayAssert.assertClose(
                    actual.weights.get(i), expected.weights.get(i), tolerance, "parameter " + i);
        }
    }

    private static Result run(TrainerKind kind, MixtureOfExperts.Builder options) {
        Result result = new Result();
        Engine.getInstance().setRandomSeed(15);
        try (Model model = Model.newInstance("net")) {
            MixtureOfExperts mixture = options.build();
            Block block =
                    sequence(
                            linear(FEATURES),
                            tanh(),
                            sum(Blocks.identityBlock(), mixture),
                            linear(3));
            model.setBlock(block);
            RouterLoss loss =
                    RouterLoss.builder()
                            .setLoss(new HalfSquareLoss())
                            .setNetwork(block)
                            .optLoadBalancing(0.3f)
                            .optZLoss(0.1f)
                            .build();
            DefaultTrainingConfig config = Configs.of(loss, Configs.adam(0.01f));
            try (Trainer trainer = kind.open(model, config);
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(new Shape(ROWS, FEATURES));
                for (int step = 0; step < 3; step++) {
                    NDArray data = TrainingRun.random(manager, step, ROWS, FEATURES);
                    NDArray labels = TrainingRun.random(manager, 9 + step, ROWS, 3);
                    result.losses.add(TrainingRun.backward(trainer, data, labels));
                    if (step == 0) {
                        for (Parameter parameter : block.getParameters().values()) {
                            NDArray gradient = gradient(manager, trainer, mixture, parameter);
                            result.gradients.add(gradient.toFloatArray());
                        }
                    }
                    trainer.step();
                }
            }
            result.weights = TrainingRun.weights(block);
        }
        return result;
    }

    /** Returns a whole gradient: put together from shards, and summed over the rows. */
    private static NDArray gradient(
            NDManager manager, Trainer trainer, MixtureOfExperts block, Parameter parameter) {
        if (!(trainer instanceof ParallelTrainer)) {
            return parameter.getArray().getGradient();
        }
        ParallelTrainer parallel = (ParallelTrainer) trainer;
        boolean own = block.getDirectParameters().values().contains(parameter);
        ShardingStrategy strategy =
                own ? block.getShardingStrategy(parameter) : ShardingStrategy.replicate();
        NDArray sum = manager.zeros(parameter.getShape());
        for (int rank = 0; rank < parallel.getRanks().size(); rank++) {
            ParallelContext context = parallel.getRanks().getContext(rank);
            int place = context.getTensorGroup().getRank();
            int size = context.getTensorGroup().getSize();
            NDArray value = parallel.getParameterStore(rank).getValue(parameter, null, true);
            NDArray gradient = Autograd.gradientOrZeros(value);
            if (!strategy.isReplicated() && size > 1) {
                NDArray part = manager.zeros(parameter.getShape());
                strategy.gather(gradient, part, place, size);
                sum.addi(part);
            } else if (place == 0 || context.getMesh().isOverlaid()) {
                sum.addi(gradient);
            }
        }
        return sum;
    }
}
