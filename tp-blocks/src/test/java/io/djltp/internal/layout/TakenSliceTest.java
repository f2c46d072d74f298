package io.djltp.internal.layout;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.step;

import static org.testng.Assert.assertNull;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.util.PairList;

import io.djltp.cut.Cut;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Blocks;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.Test;

import java.util.List;

/** A block that knows how its slice is cut divides it; what it returns is a slice again. */
public class TakenSliceTest {

    private static final int ROWS = 5;
    private static final long HALF = 7;

    /** The product of two halves, which lie one after another on each rank too. */
    private static final class Halves extends AbstractBlock {

        private final boolean takes; // or computes with the slice as anyone does
        private final ShardingStrategy needed;

        Halves(boolean takes, ShardingStrategy needed) {
            super((byte) 1);
            this.takes = takes;
            this.needed = needed;
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList inputs, boolean training, PairList<String, Object> p) {
            ParallelContext context = RankParameterStore.contextOf(store);
            NDArray y = inputs.head();
            if (context == null || context.getTensorGroup().getSize() == 1) {
                return new NDList(product(y));
            }
            int ranks = context.getTensorGroup().getSize();
            ForwardPass pass = context.getPass();
            if (takes) {
                Cut cut = needed.cut(new Shape(2 * HALF, 3), ranks);
                y = pass.takeSlice(y, cut, context.getTensorGroup().getRank(), "Halves");
                assertNull(pass.layoutOf(y));
                ShardedLayout layout = new ShardedLayout(Cut.balanced(HALF, ranks));
                return new NDList(pass.enterSlice(product(y), layout, "Halves"));
            }
            return new NDList(product(y));
        }

        private static NDArray product(NDArray y) {
            long half = y.getShape().get(1) / 2;
            return y.get(":, {}:", half).mul(y.get(":, :{}", half));
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return new Shape[] {new Shape(shapes[0].get(0), HALF)};
        }
    }

    private static Block cut(ShardingStrategy strategy, Halves halves) {
        return sequence(newColumn(2 * HALF).optShardingStrategy(strategy).build(), halves, row(4));
    }

    private static TrainingRun train(TrainerKind kind, Block block) {
        return TrainingRun.of(
                kind,
                block,
                new HalfSquareLoss(),
                new Shape(ROWS, 3),
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        NDArray data = random(manager, i, ROWS, 3);
                        NDArray labels = random(manager, 9 + i, ROWS, 4);
                        numbers.add(step(trainer, data, labels));
                        numbers.add(trainer.evaluate(new NDList(data)).head().sum().getFloat());
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void theProductOfHalvesIsThatOfPlainDjl() {
        TrainingRun plain =
                train(PLAIN, sequence(linear(2 * HALF), new Halves(true, null), linear(4)));
        for (int ranks = 1; ranks <= 4; ranks++) {
            Block block =
                    cut(ShardingStrategy.gateUp(), new Halves(true, ShardingStrategy.gateUp()));
            train(new TrainerKind(ParallelMode.TENSOR, ranks), block).assertSame(plain, 1e-5);
        }
        Block block = cut(ShardingStrategy.gateUp(), new Halves(true, ShardingStrategy.gateUp()));
        train(MESH_2X2, block).assertSame(plain, 1e-5);
    }

    /** The two halves are known to be two parts of what is stacked. */
    @Test(timeOut = 60_000)
    public void aNetworkMayDivideASlice() {
        TrainingRun plain =
                train(PLAIN, sequence(linear(2 * HALF), new Halves(false, null), linear(4)));
        for (int ranks = 1; ranks <= 4; ranks++) {
            Block block = cut(ShardingStrategy.gateUp(), new Halves(false, null));
            train(new TrainerKind(ParallelMode.TENSOR, ranks), block).assertSame(plain, 1e-5);
        }
        assertRefused(
                cut(ShardingStrategy.rowwise(), new Halves(false, null)),
                "The output of ColumnParallelLinear (14, 3)",
                "optGatherOutput(true)");
    }

    /** A softmax between the layer and the block that takes its slice, and one after it. */
    @Test(timeOut = 60_000)
    public void whatComesBeforeAndAfterIsLookedAt() {
        assertRefused(withSoftmax(1), "The output of ColumnParallelLinear", "softmax");
        assertRefused(withSoftmax(2), "The output of Halves", "softmax");
    }

    private static Block withSoftmax(int place) {
        Halves halves = new Halves(true, ShardingStrategy.gateUp());
        SequentialBlock block = new SequentialBlock();
        List<Block> layers = cut(ShardingStrategy.gateUp(), halves).getChildren().values();
        for (int i = 0; i < layers.size(); i++) {
            if (i == place) {
                block.add(list -> new NDList(list.head().softmax(-1)));
            }
            block.add(layers.get(i));
        }
        return block;
    }

    @Test(timeOut = 60_000)
    public void aSliceOfAnotherCutAndAWholeAreRefused() {
        assertRefused(
                cut(ShardingStrategy.rowwise(), new Halves(true, ShardingStrategy.gateUp())),
                "Halves needs a slice",
                "[0,4) [7,11) | [4,7) [11,14) of 14",
                "cut as [0,7) | [7,14) of 14");
        assertRefused(
                sequence(
                        linear(2 * HALF),
                        new Halves(true, ShardingStrategy.gateUp()),
                        relu(),
                        row(4)),
                "Halves needs a slice",
                "which is whole");
    }

    private static void assertRefused(Block block, String... parts) {
        try (Model model = Blocks.model(block);
                NDManager manager = NDManager.newBaseManager();
                Trainer trainer =
                        new ParallelTrainer(
                                model,
                                new DefaultTrainingConfig(new HalfSquareLoss()),
                                Ranks.config(ParallelMode.TENSOR, 2))) {
            trainer.initialize(new Shape(ROWS, 3));
            NDArray data = random(manager, 1, ROWS, 3);
            NDArray labels = random(manager, 2, ROWS, 4);
            expect(
                    RuntimeException.class,
                    () -> trainer.forward(new NDList(data), new NDList(labels)),
                    parts);
        }
    }
}
