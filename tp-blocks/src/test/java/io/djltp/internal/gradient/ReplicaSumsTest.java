package io.djltp.internal.gradient;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;

import io.djltp.collective.CollectiveCounts;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** Gradients of what several ranks hold are summed by few operations, and as DJL computes them. */
public class ReplicaSumsTest {

    private static final int ROWS = 6;
    private static final int LAYERS = 5;
    private static final int STEPS = 6;
    private static final int FROZEN = 4; // the step without one of the layers
    private static final double TOLERANCE = 1e-5;

    /** Each rank has two features for itself, and two in common with each neighbour. */
    private static Cut chain(int ranks) {
        return Cut.of(
                2 + 2L * ranks,
                ranks,
                rank -> List.of(new ShardRange(2L * rank, 4))); // ranks 0 and 1 have 2 to 4
    }

    /** The same features on all ranks, at both ends, and some of a rank's own in between. */
    private static Cut ends(int ranks) {
        long units = 4 + 3L * ranks;
        return Cut.of(
                units,
                ranks,
                rank ->
                        List.of(
                                new ShardRange(0, 2),
                                new ShardRange(2 + 3L * rank, 3),
                                new ShardRange(units - 2, 2)));
    }

    private static Block network(Cut cut) {
        SequentialBlock block = new SequentialBlock();
        for (int i = 0; i < LAYERS; i++) {
            block.add(
                            cut == null || cut.getRanks() == 1
                                    ? linear(cut.getLength())
                                    : newColumn(cut.getLength())
                                            .optShardingStrategy(ShardingStrategy.rowwise(cut))
                                            .optGatherOutput(true)
                                            .build())
                    .add(Activation::tanh);
        }
        return block;
    }

    private static TrainingRun train(
            TrainerKind kind, Block block, int width, List<CollectiveCounts> steps) {
        return TrainingRun.of(
                kind,
                block,
                new HalfSquareLoss(),
                new Shape(ROWS, width),
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < STEPS; step++) {
                        block.getChildren().valueAt(2).freezeParameters(step == FROZEN);
                        NDArray data = random(manager, step, ROWS, width);
                        NDArray labels = random(manager, 100 + step, ROWS, width);
                        numbers.add(backward(trainer, data, labels));
                        if (trainer instanceof ParallelTrainer parallel) {
                            CollectiveCounts before = parallel.getCollectiveCounts();
                            trainer.step();
                            steps.add(parallel.getCollectiveCounts().minus(before));
                        } else {
                            trainer.step();
                        }
                    }
                });
    }

    @DataProvider
    public Object[][] cuts() {
        List<Object[]> cases = new ArrayList<>();
        for (int ranks = 2; ranks <= 4; ranks++) {
            cases.add(new Object[] {"chain", ranks, chain(ranks), 2});
            cases.add(new Object[] {"ends", ranks, ends(ranks), 4});
        }
        return cases.toArray(new Object[0][]);
    }

    /** Weights and biases of five layers, of which one is frozen for a step. */
    @Test(dataProvider = "cuts", timeOut = 60_000)
    public void manyLayersAreOneOperation(String name, int ranks, Cut cut, int shared) {
        int width = (int) cut.getLength();
        List<CollectiveCounts> steps = new ArrayList<>();
        TrainingRun expected = train(PLAIN, network(Cut.ofLengths(width)), width, steps);
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
        train(kind, network(cut), width, steps).assertSame(expected, TOLERANCE);
        for (int step : new int[] {2, FROZEN, 5}) { // after the others, replicas are compared
            int trained = step == FROZEN ? LAYERS - 1 : LAYERS;
            assertEquals(steps.get(step).toString(), "1 all-reduce");
            assertEquals(steps.get(step).bytes(), trained * shared * (width + 1) * 4L);
        }
    }
}
