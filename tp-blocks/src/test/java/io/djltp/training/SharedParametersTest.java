package io.djltp.training;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.util.PairList;

import io.djltp.cut.Cut;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.ParallelMode;
import io.djltp.layout.Region;
import io.djltp.parameters.RankParameterStore;
import io.djltp.parameters.ShardedBlock;
import io.djltp.region.RegionMappings;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

/** Two blocks with one parameter: a rank can give both of them the same part, or none. */
public class SharedParametersTest {

    private static final int FEATURES = 6;

    /** A product with a square matrix that other blocks may have too. */
    private static class Product extends AbstractBlock {

        private final Parameter matrix;

        Product(Parameter matrix) {
            super((byte) 1);
            this.matrix = addParameter(matrix);
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = inputs.singletonOrThrow();
            NDArray value = store.getValue(matrix, x.getDevice(), training);
            return new NDList(product(store, x, value));
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
                            Cut.balanced(FEATURES, context.getTensorGroup().getSize()));
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
        return Parameter.builder()
                .setName("matrix")
                .setType(Parameter.Type.WEIGHT)
                .optShape(new Shape(FEATURES, FEATURES))
                .build();
    }

    @Test(timeOut = 60_000)
    public void twoStrategies() {
        Parameter matrix = matrix();
        Block block =
                sequence(
                        new CutProduct(matrix, ShardingStrategy.rowwise()),
                        sequence(new CutProduct(matrix, ShardingStrategy.columnwise())));
        assertRefused(
                block,
                "matrix (6, 6)",
                "axiswise(0) in 01CutProduct",
                "axiswise(1) in 02SequentialBlock_01CutProduct");
    }

    /** The same axis is not enough: the ranges count. The same ranges are. */
    @Test(timeOut = 60_000)
    public void twoCuts() {
        Parameter matrix = matrix();
        assertRefused(
                sequence(
                        new CutProduct(matrix, ShardingStrategy.rowwise()),
                        new CutProduct(matrix, ShardingStrategy.rowwise(Cut.ofLengths(4, 2)))),
                "matrix (6, 6)",
                "two strategies over 2 ranks",
                "axiswise(0) in 01CutProduct",
                "axiswise(0, [0,4) | [4,6) of 6) in 02CutProduct");
        Parameter alike = matrix();
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(
                    sequence(
                            new CutProduct(alike, ShardingStrategy.rowwise()),
                            new CutProduct(alike, ShardingStrategy.rowwise(Cut.ofLengths(3, 3)))));
            try (Trainer trainer =
                    new ParallelTrainer(
                            model,
                            new DefaultTrainingConfig(Loss.l2Loss()),
                            Ranks.config(ParallelMode.TENSOR, 2))) {
                trainer.initialize(new Shape(4, FEATURES));
            }
        }
    }

    @Test(timeOut = 60_000)
    public void anOrdinaryBlock() {
        for (boolean ordinaryFirst : new boolean[] {true, false}) {
            Parameter matrix = matrix();
            Block cut = new CutProduct(matrix, ShardingStrategy.rowwise());
            Block ordinary = new Product(matrix);
            Block block = ordinaryFirst ? sequence(ordinary, cut) : sequence(cut, ordinary);
            assertRefused(
                    block,
                    "matrix (6, 6)",
                    "axiswise(0) in ",
                    "CutProduct (CutProduct)",
                    "replicate in ",
                    "Product (Product)");
        }
    }

    private static void assertRefused(Block block, String... parts) {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(block);
            try (Trainer trainer =
                    new ParallelTrainer(
                            model,
                            new DefaultTrainingConfig(Loss.l2Loss()),
                            Ranks.config(ParallelMode.TENSOR, 2))) {
                throwsArgument(() -> trainer.initialize(new Shape(4, FEATURES)), parts);
            }
        }
    }

    /** And where nothing is cut, the strategies do not matter. */
    @Test(timeOut = 60_000)
    public void theSameStrategy() {
        TrainingRun expected = train(PLAIN);
        for (int ranks : new int[] {1, 2, 3}) {
            train(new TrainerKind(ParallelMode.TENSOR, ranks)).assertSame(expected, 5e-6);
        }
        train(DATA_2).assertSame(expected, 5e-6);
    }

    private static TrainingRun train(TrainerKind kind) {
        Parameter matrix = matrix();
        Block block =
                sequence(
                        linear(FEATURES),
                        new CutProduct(matrix, ShardingStrategy.rowwise()),
                        new CutProduct(matrix, ShardingStrategy.axiswise(0)));
        return TrainingRun.of(
                kind,
                block,
                Loss.softmaxCrossEntropyLoss(),
                new Shape(4, FEATURES),
                SharedParametersTest::steps);
    }

    private static void steps(Trainer trainer, NDManager manager, java.util.List<Float> numbers) {
        for (int i = 0; i < 3; i++) {
            NDArray data = random(manager, i, 4, FEATURES);
            NDArray labels = labels(manager, i, 4, FEATURES);
            numbers.add(backward(trainer, data, labels));
            trainer.step();
        }
    }
}
