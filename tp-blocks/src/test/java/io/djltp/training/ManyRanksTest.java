package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.TensorView;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankPool;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

import java.util.List;

/** 64 ranks in one JVM compute what one does. */
public class ManyRanksTest {

    private static final int RANKS = 64;
    private static final int STEPS = 2;
    private static final int ROWS = 8;
    private static final int FEATURES = 10;
    private static final int HIDDEN = RANKS + 6; // six ranks hold two of them, the others one
    private static final int OUTPUTS = 12;

    @Test(timeOut = 60_000)
    public void aTensorParallelStepIsThatOfTheWholeNetwork() {
        TrainingRun whole = train(PLAIN, linear(HIDDEN), linear(OUTPUTS));
        TrainingRun cut =
                train(new TrainerKind(ParallelMode.TENSOR, RANKS), column(HIDDEN), row(OUTPUTS));
        cut.assertSame(whole, 1e-5);
    }

    @Test(timeOut = 60_000)
    public void anAllReduceSumsAll() {
        ParallelConfig config = Ranks.config(ParallelMode.TENSOR, RANKS);
        try (RankPool pool = new RankPool(config);
                NDManager manager = NDManager.newBaseManager()) {
            List<Float> sums =
                    pool.run(
                            context -> {
                                NDArray array = manager.ones(new Shape(3)).muli(context.getRank());
                                context.getWorld()
                                        .allReduce(TensorView.of(array), ReduceOp.SUM)
                                        .await();
                                return array.max().getFloat() + array.min().getFloat();
                            });
            sums.forEach(sum -> assertEquals(sum, (float) RANKS * (RANKS - 1)));
        }
    }

    private static TrainingRun train(TrainerKind kind, Block first, Block second) {
        Block network = sequence(first, relu(), second);
        return TrainingRun.of(
                kind,
                network,
                new HalfSquareLoss(),
                new Shape(ROWS, FEATURES),
                (trainer, manager, losses) -> {
                    NDArray data = random(manager, 1, ROWS, FEATURES);
                    NDArray labels = random(manager, 2, ROWS, OUTPUTS);
                    for (int i = 0; i < STEPS; i++) {
                        losses.add(backward(trainer, data, labels));
                        trainer.step();
                    }
                });
    }
}
