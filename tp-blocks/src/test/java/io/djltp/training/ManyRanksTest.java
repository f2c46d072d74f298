package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;

import io.djltp.collective.ReduceOp;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankPool;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.TensorView;

import org.testng.Assert;
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
        TrainingRun whole =
                train(
                        TrainerKind.PLAIN,
                        Linear.builder().setUnits(HIDDEN).build(),
                        Linear.builder().setUnits(OUTPUTS).build());
        TrainingRun cut =
                train(
                        new TrainerKind(ParallelMode.TENSOR, RANKS),
                        ColumnParallelLinear.builder().setUnits(HIDDEN).build(),
                        RowParallelLinear.builder().setUnits(OUTPUTS).build());
        cut.assertSame(whole, 1e-5);
    }

    @Test(timeOut = 60_000)
    public void anAllReduceSumsAll() {
        ParallelConfig config =
                ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(RANKS).build();
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
            sums.forEach(sum -> Assert.assertEquals(sum, (float) RANKS * (RANKS - 1)));
        }
    }

    private static TrainingRun train(TrainerKind kind, Block first, Block second) {
        Block network = new SequentialBlock().add(first).add(Activation::relu).add(second);
        return TrainingRun.of(
                kind,
                network,
                new HalfSquareLoss(),
                new Shape(ROWS, FEATURES),
                (trainer, manager, losses) -> {
                    NDArray data = TrainingRun.random(manager, 1, ROWS, FEATURES);
                    NDArray labels = TrainingRun.random(manager, 2, ROWS, OUTPUTS);
                    for (int i = 0; i < STEPS; i++) {
                        losses.add(TrainingRun.backward(trainer, data, labels));
                        trainer.step();
                    }
                });
    }
}
