package io.djltp.training;

import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.newRow;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.util.PairList;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.region.RegionMappings;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.Assert.ThrowingRunnable;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

/**
 * A network that cannot be cut is not built or not initialized, with one clear error, which names
 * the value, the limit and what to do. Two blocks with one parameter: a rank gives both of them the
 * same part, or none.
 */
public class BadModelTest {

    private static ColumnParallelLinear.Builder column(Cut cut) {
        return newColumn(8).optShardingStrategy(ShardingStrategy.rowwise(cut));
    }

    private static Object[] build(ThrowingRunnable builder, String... parts) {
        return new Object[] {builder, parts};
    }

    @DataProvider
    public Object[][] builders() {
        ColumnParallelLinear.Builder column = ColumnParallelLinear.builder().setUnits(8);
        RowParallelLinear.Builder row = RowParallelLinear.builder().setUnits(8);
        return new Object[][] {
            build(() -> Blocks.column(0), "units .. 1 or more .. 0"),
            build(() -> Blocks.column(-3), "units .. 1 or more .. -3"),
            build(() -> Blocks.row(0), "units .. 1 or more .. 0"),
            build(() -> Blocks.row(-3), "units .. 1 or more .. -3"),
            build(
                    RowParallelLinear.builder().setUnits(3).optBatchShardedInput(true)::build,
                    "optInputIsParallel(false)"),
            build(
                    column.optShardingStrategy(ShardingStrategy.columnwise())::build,
                    "ColumnParallelLinear cuts axis 0 .. output features .. axiswise(1)"),
            build(
                    row.optShardingStrategy(ShardingStrategy.replicate())::build,
                    "RowParallelLinear cuts axis 1 .. input features .. replicate"),
        };
    }

    @Test(dataProvider = "builders")
    public void isNotBuilt(ThrowingRunnable builder, String... parts) {
        throwsArgument(builder, parts);
    }

    private static Object[] network(TrainerKind kind, Block block, String... parts) {
        return new Object[] {kind, block, parts};
    }

    @DataProvider
    public Object[][] networks() {
        Parameter twoStrategies = matrix();
        Parameter twoCuts = matrix();
        Parameter ordinary = matrix();
        Parameter ordinaryLast = matrix();
        ShardingStrategy rows = ShardingStrategy.rowwise();
        return new Object[][] {
            network(
                    TENSOR_4,
                    Blocks.column(3),
                    "weight (3, 6) .. over 4 ranks .. axis 0 has length 3 .. rank 3 empty",
                    "at most 3 ranks"),
            network(
                    new TrainerKind(ParallelMode.TENSOR, 8),
                    RowParallelLinear.builder().setUnits(30).optInputIsParallel(false).build(),
                    "weight (30, 6) .. axis 1 has length 6 .. at most 6 ranks"),
            network(MIXED_2, Blocks.column(7), "MIXED mode .. optBatchShardedInput(true)"),
            network(
                    TENSOR_2,
                    column(Cut.ofLengths(5, 4)).build(),
                    "weight (8, 6) .. 2 ranks .. [0,5) | [5,9) of 9",
                    "cuts 9 elements, and axis 0 has 8"),
            network(
                    TENSOR_2,
                    column(Cut.ofLengths(3, 3, 2)).build(),
                    "weight (8, 6) .. for 3 ranks, not for 2"),
            network(
                    TENSOR_2,
                    column(Cut.ofLengths(8, 0)).build(),
                    "weight (8, 6) .. leaves rank 1 empty. Give every rank one or more"),
            network( // replicated input features
                    TENSOR_2,
                    newRow(3)
                            .optShardingStrategy(
                                    ShardingStrategy.columnwise(
                                            Cut.of(6, 2, r -> List.of(new ShardRange(r, 5)))))
                            .optInputIsParallel(false)
                            .build(),
                    "weight (3, 6) .. [0,5) | [1,6) of 6 .. gives several ranks the same"),
            network( // of many layers, which one?
                    TENSOR_2,
                    sequence(column(Cut.balanced(8, 2)).build(), Blocks.row(1), gathered(1)),
                    "Parameter 03ColumnParallelLinear_weight (1, 1) cannot be cut over 2 ranks"),
            network(
                    TENSOR_2,
                    sequence(
                            new CutProduct(twoStrategies, rows),
                            sequence(new CutProduct(twoStrategies, ShardingStrategy.columnwise()))),
                    "matrix (6, 6) .. axiswise(0) in 01CutProduct",
                    "axiswise(1) in 02SequentialBlock_01CutProduct"),
            network( // the same axis is not enough: the ranges count
                    TENSOR_2,
                    sequence(
                            new CutProduct(twoCuts, rows),
                            new CutProduct(twoCuts, ShardingStrategy.rowwise(Cut.ofLengths(4, 2)))),
                    "matrix (6, 6) .. two strategies over 2 ranks",
                    "axiswise(0) in 01CutProduct",
                    "axiswise(0, [0,4) | [4,6) of 6) in 02CutProduct"),
            network(
                    TENSOR_2,
                    sequence(new Product(ordinary), new CutProduct(ordinary, rows)),
                    "matrix (6, 6) .. axiswise(0) in 02CutProduct (CutProduct)",
                    "replicate in 01Product (Product)"),
            network(
                    TENSOR_2,
                    sequence(new CutProduct(ordinaryLast, rows), new Product(ordinaryLast)),
                    "matrix (6, 6) .. axiswise(0) in 01CutProduct (CutProduct)",
                    "replicate in 02Product (Product)"),
        };
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void isNotInitialized(TrainerKind kind, Block block, String... parts) {
        throwsArgument(() -> initialize(kind, block, DataType.FLOAT32), parts);
    }

    /** DJL's native code has no such arrays, and would end the process. */
    @Test(timeOut = 60_000)
    public void arraysInBfloat16() {
        for (TrainerKind kind : List.of(TENSOR_1, TENSOR_2)) {
            throwsArgument(
                    () -> initialize(kind, Blocks.column(7), DataType.BFLOAT16),
                    "bfloat16 .. setDataType(DataType.FLOAT32)",
                    "optPrecision(Precision.BFLOAT16)");
        }
    }

    private static void initialize(TrainerKind kind, Block block, DataType type) {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(block);
            try (Trainer trainer = kind.open(model, Configs.of(new HalfSquareLoss()))) {
                model.setDataType(type);
                trainer.initialize(new Shape(4, 6));
            }
        }
    }

    /** A product with a square matrix that other blocks may have too. */
    private static class Product extends AbstractBlock {
        private final Parameter matrix;

        Product(Parameter matrix) {
            super((byte) 1);
            this.matrix = addParameter(matrix);
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList inputs, boolean training, PairList<String, Object> p) {
            NDArray x = inputs.singletonOrThrow();
            return new NDList(product(store, x, store.getValue(matrix, x.getDevice(), training)));
        }

        NDArray product(ParameterStore store, NDArray x, NDArray value) {
            return x.dot(value.transpose());
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputs) {
            return inputs;
        }
    }

    /** The same with its rows cut, and a whole output. */
    private static final class CutProduct extends Product implements ShardedBlock {
        private final ShardingStrategy strategy;

        CutProduct(Parameter matrix, ShardingStrategy strategy) {
            super(matrix);
            this.strategy = strategy;
        }

        @Override
        NDArray product(ParameterStore store, NDArray x, NDArray value) {
            var context = RankParameterStore.contextOf(store);
            if (context == null || context.getTensorGroup().getSize() == 1) {
                return super.product(store, x, value);
            }
            RegionMappings mappings = context.getMappings(this);
            ForwardPass pass = context.getPass();
            NDArray input = pass.enter(mappings.copyToRegion(x), Region.Features.SHARD);
            NDArray whole =
                    mappings.gatherFromRegion(
                            input.dot(value.transpose()),
                            Cut.balanced(6, context.getTensorGroup().getSize()));
            return pass.enter(whole, Region.Features.REPLICATED);
        }

        @Override
        public ShardingStrategy getShardingStrategy(Parameter parameter) {
            return strategy;
        }

        @Override
        public boolean isBatchShardedInput() {
            return false;
        }
    }

    private static Parameter matrix() {
        return Blocks.parameter("matrix", new Shape(6, 6));
    }

    /** The same ranges are enough; and where nothing is cut, the strategies do not matter. */
    @Test(timeOut = 60_000)
    public void oneParameterCutAlike() {
        Network.of(
                        cut -> {
                            Parameter matrix = matrix();
                            return sequence(
                                    linear(6),
                                    new CutProduct(matrix, ShardingStrategy.rowwise()),
                                    new CutProduct(matrix, ShardingStrategy.axiswise(0)));
                        },
                        Loss::softmaxCrossEntropyLoss,
                        Network.batches("4x6", "4:6"))
                .assertEqual(5e-6, TENSOR_1, TENSOR_2, TENSOR_3, DATA_2);
        Parameter alike = matrix();
        Block halves =
                sequence(
                        new CutProduct(alike, ShardingStrategy.rowwise()),
                        new CutProduct(alike, ShardingStrategy.rowwise(Cut.ofLengths(3, 3))));
        initialize(TENSOR_2, halves, DataType.FLOAT32);
    }
}
