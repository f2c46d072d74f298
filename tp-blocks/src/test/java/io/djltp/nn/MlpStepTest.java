package io.djltp.nn;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.scattered;
import static io.djltp.testing.Blocks.sequence;

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

import io.djltp.internal.torch.Autograd;
import io.djltp.layout.ParallelMode;
import io.djltp.parameters.RankParameterStore;
import io.djltp.parameters.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/**
 * One step of a two-layer perceptron, column then row, is that of the dense one: the output, every
 * gradient, every parameter after the step, and the next output. In TENSOR mode, and in its
 * sequence-parallel form, where the batch is gathered before the first layer and cut after the
 * second.
 */
public class MlpStepTest {

    // fp32: sums of 16 products in another order, over two layers
    private static final double TOLERANCE = 1e-6;

    /** What a step computes. */
    private static final class Step {
        private float[] output;
        private final List<float[]> gradients = new ArrayList<>();
        private final List<float[]> parameters = new ArrayList<>();
        private float[] nextOutput;
    }

    @DataProvider
    public Object[][] kinds() {
        List<Object[]> kinds = new ArrayList<>();
        for (ParallelMode mode : new ParallelMode[] {ParallelMode.TENSOR, ParallelMode.MIXED}) {
            for (int ranks : new int[] {1, 2, 3, 4}) {
                kinds.add(new Object[] {new TrainerKind(mode, ranks)});
            }
        }
        return kinds.toArray(new Object[0][]);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aStepIsThatOfTheDenseNetwork(TrainerKind kind) {
        Step dense = step(TrainerKind.PLAIN);
        Step actual = step(kind);
        ArrayAssert.assertClose(actual.output, dense.output, TOLERANCE, "output");
        for (int i = 0; i < dense.gradients.size(); i++) {
            ArrayAssert.assertClose(
                    actual.gradients.get(i), dense.gradients.get(i), TOLERANCE, "gradient " + i);
            ArrayAssert.assertClose(
                    actual.parameters.get(i), dense.parameters.get(i), TOLERANCE, "parameter " + i);
        }
        ArrayAssert.assertClose(actual.nextOutput, dense.nextOutput, TOLERANCE, "next output");
    }

    private static Step step(TrainerKind kind) {
        Step step = new Step();
        Engine.getInstance().setRandomSeed(15);
        try (Model model = Model.newInstance("mlp")) {
            model.setBlock(block(kind));
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(new HalfSquareLoss())
                            .optOptimizer(Configs.sgd(0.25f));
            try (Trainer trainer = kind.open(model, config)) {
                trainer.initialize(new Shape(8, 10));
                NDManager manager = trainer.getManager().newSubManager();
                NDList data = new NDList(manager.randomNormal(new Shape(8, 10)));
                NDList labels = new NDList(manager.randomNormal(new Shape(8, 12)));
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDList output = trainer.forward(data, labels);
                    step.output = output.singletonOrThrow().toFloatArray();
                    collector.backward(trainer.getLoss().evaluate(labels, output));
                }
                for (Parameter parameter : model.getBlock().getParameters().values()) {
                    NDArray gradient = gradient(manager, trainer, parameter);
                    step.gradients.add(gradient.toFloatArray());
                }
                trainer.step();
                step.nextOutput = trainer.evaluate(data).singletonOrThrow().toFloatArray();
            }
            for (Parameter parameter : model.getBlock().getParameters().values()) {
                step.parameters.add(parameter.getArray().toFloatArray());
            }
        }
        return step;
    }

    private static Block block(TrainerKind kind) {
        if (kind.equals(TrainerKind.PLAIN)) {
            return sequence(linear(16), relu(), linear(12));
        }
        return sequence(head(16), relu(), scattered(12));
    }

    /** Returns a whole gradient: as it is, put together from slices, or summed over the rows. */
    private static NDArray gradient(NDManager manager, Trainer trainer, Parameter parameter) {
        if (!(trainer instanceof ParallelTrainer)) {
            return parameter.getArray().getGradient();
        }
        ParallelTrainer parallel = (ParallelTrainer) trainer;
        int ranks = parallel.getRanks().size();
        boolean sum = parallel.getRanks().getContext(0).getMesh().isOverlaid();
        ShardingStrategy strategy = strategy(trainer.getModel().getBlock(), parameter);
        NDArray whole = manager.zeros(parameter.getShape());
        for (int rank = 0; rank < ranks; rank++) {
            RankParameterStore store = parallel.getParameterStore(rank);
            NDArray gradient = Autograd.gradient(store.getValue(parameter, null, true));
            if (!strategy.isReplicated()) {
                strategy.gather(gradient, whole, rank, ranks);
            } else if (rank == 0 || sum) {
                whole.addi(gradient);
            }
            gradient.close();
        }
        return whole;
    }

    private static ShardingStrategy strategy(Block block, Parameter parameter) {
        for (Block child : block.getChildren().values()) {
            if (child.getDirectParameters().values().contains(parameter)) {
                return ((ShardedBlock) child).getShardingStrategy(parameter);
            }
        }
        throw new AssertionError(parameter.getName());
    }
}
