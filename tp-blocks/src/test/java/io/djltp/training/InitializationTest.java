package io.djltp.training;

import static io.djltp.sharding.ShardingStrategy.expertParallel;
import static io.djltp.sharding.ShardingStrategy.tensorParallel;
import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.ArrayAssert.assertExact;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.table;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.held;
import static io.djltp.testing.TrainingRun.weights;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.initializer.TruncatedNormalInitializer;
import ai.djl.training.initializer.UniformInitializer;
import ai.djl.training.initializer.XavierInitializer;
import ai.djl.training.initializer.XavierInitializer.FactorType;
import ai.djl.training.initializer.XavierInitializer.RandomType;
import ai.djl.training.loss.Loss;
import ai.djl.util.RandomUtils;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.moe.MixtureOfExperts;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.PlainEmbedding;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.Supplier;

/**
 * A model starts from the weights that DJL gives it with the same seed, bit for bit, whatever the
 * mode, the number of ranks and the initializer: all of DJL's, and some that draw twice, look at
 * what they have drawn, or change it (conformance case 22). Or it starts from the weights that it
 * was loaded with.
 */
public class InitializationTest {

    private static final Map<String, Supplier<Initializer>> INITIALIZERS = new LinkedHashMap<>();

    /** Which are tried in all modes, at several sizes. */
    private static final List<String> OF_ALL_MODES =
            List.of(
                    "xavier UNIFORM AVG",
                    "normal",
                    "uniform",
                    "ones",
                    "zeros",
                    "constant",
                    "centred");

    static {
        INITIALIZERS.put("zeros", () -> Initializer.ZEROS);
        INITIALIZERS.put("ones", () -> Initializer.ONES);
        INITIALIZERS.put("constant", () -> new ConstantInitializer(0.3f));
        INITIALIZERS.put("normal", () -> new NormalInitializer(0.2f));
        INITIALIZERS.put("truncated normal", () -> new TruncatedNormalInitializer(0.5f));
        INITIALIZERS.put("uniform", () -> new UniformInitializer(0.4f));
        for (RandomType random : RandomType.values()) {
            for (FactorType factor : FactorType.values()) {
                INITIALIZERS.put(
                        "xavier " + random + " " + factor,
                        () -> new XavierInitializer(random, factor, 3));
            }
        }
        own("drawn twice", (m, s, t) -> m.randomNormal(s, t).add(m.randomUniform(-1, 1, s, t)));
        own("scaled in place", (m, s, t) -> m.randomNormal(s, t).muli(0.25f));
        own("first element set", InitializationTest::firstElementSet);
        own("read", InitializationTest::dividedByItsLength);
        own("read and returned", InitializationTest::drawnUntilLargeEnough);
        own("as the second operand", (m, s, t) -> m.ones(s, t).sub(m.randomNormal(s, t)));
        own("in a list", InitializationTest::meanOfTwo);
        own("of a sub manager", InitializationTest::ofSubManager);
        own("drawn after it", InitializationTest::drawnAfterwards);
        own("of Java's generator", InitializationTest::gaussianOfJava);
        own("centred", InitializationTest::centred);
        INITIALIZERS.put("of its own generator", InitializationTest::ownGenerator);
    }

    private static void own(String name, Initializer initializer) {
        INITIALIZERS.put(name, () -> initializer);
    }

    private static NDArray firstElementSet(NDManager manager, Shape shape, DataType type) {
        NDArray values = manager.randomUniform(0, 1, shape, type);
        values.set(new NDIndex(new long[shape.dimension()]), 7f);
        return values;
    }

    private static NDArray dividedByItsLength(NDManager manager, Shape shape, DataType type) {
        NDArray values = manager.randomNormal(shape, type);
        return values.div(values.norm().getFloat());
    }

    private static NDArray drawnUntilLargeEnough(NDManager manager, Shape shape, DataType type) {
        NDArray values = manager.randomNormal(shape, type);
        while (values.max().getFloat() < 1.5f) {
            values = manager.randomNormal(shape, type);
        }
        return values;
    }

    private static NDArray meanOfTwo(NDManager manager, Shape shape, DataType type) {
        NDArray values = manager.randomNormal(shape, type);
        NDArray others = manager.randomNormal(shape, type);
        return NDArrays.stack(new NDList(others, values)).mean(new int[] {0});
    }

    private static NDArray ofSubManager(NDManager manager, Shape shape, DataType type) {
        try (NDManager scope = manager.newSubManager()) {
            NDArray values = scope.randomNormal(shape, type).mul(2);
            values.attach(manager);
            return values;
        }
    }

    /** Nothing that the manager sees. */
    private static NDArray drawnAfterwards(NDManager manager, Shape shape, DataType type) {
        NDArray values = manager.randomNormal(shape, type);
        try (NDManager other = NDManager.newBaseManager()) {
            other.randomNormal(new Shape(3));
        }
        return values;
    }

    private static NDArray gaussianOfJava(NDManager manager, Shape shape, DataType type) {
        float[] values = new float[(int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) RandomUtils.nextGaussian();
        }
        return manager.create(values, shape);
    }

    private static NDArray centred(NDManager manager, Shape shape, DataType type) {
        NDArray values = manager.randomNormal(shape, type);
        return values.sub(values.mean(new int[] {0}, true)).mul(0.5f);
    }

    private static Initializer ownGenerator() {
        Random random = new Random(5);
        return (manager, shape, type) ->
                manager.randomUniform(0, 1, shape, type).mul(random.nextFloat());
    }

    @DataProvider
    public Object[][] initializers() {
        return TrainerKind.rows(INITIALIZERS.keySet());
    }

    /** Sixteen and nine are the sizes at which libtorch changes how it draws. */
    @Test(dataProvider = "initializers", timeOut = 60_000)
    public void theBitsAreThoseOfDjl(String name) {
        boolean all = OF_ALL_MODES.contains(name);
        List<TrainerKind> kinds = TrainerKind.all(1, 2, 3, 4);
        List<TrainerKind> tensor = List.of(TENSOR_1, TENSOR_2, TENSOR_3, TENSOR_4);
        for (long[] sizes : new long[][] {{16, 16, 16}, {13, 21, 7}, {5, 4, 4}, {40, 64, 100}}) {
            Shape input = new Shape(8, sizes[0]);
            List<float[]> expected = start(PLAIN, block(PLAIN, sizes), input, name);
            for (TrainerKind kind : all ? kinds : tensor) {
                String what = name + ", " + kind + " " + Arrays.toString(sizes) + ", parameter";
                assertAllBitEqual(start(kind, block(kind, sizes), input, name), expected, what);
            }
        }
    }

    @DataProvider
    public Object[][] large() {
        return new Object[][] {
            // blocks of rows of 16 MiB: three of them, the last shorter
            {70_001L, 67L, TENSOR_3},
            {140_001L, 67L, TENSOR_4},
            // one row more than a block: too few elements to be drawn alone
            {(1 << 22) + 1L, 1L, TENSOR_2},
            {(1 << 21) + 16L, 2L, TENSOR_3},
        };
    }

    @Test(dataProvider = "large", timeOut = 60_000)
    public void aLargeLayerIsDrawnInBlocks(long units, long features, TrainerKind kind) {
        Block column = ColumnParallelLinear.builder().setUnits(units).optGatherOutput(true).build();
        Block row = RowParallelLinear.builder().setUnits(units).optInputIsParallel(false).build();
        List<float[]> expected = large(PLAIN, linear(units), features);
        assertAllBitEqual(large(kind, column, features), expected, "column");
        if (features >= kind.ranks()) {
            assertAllBitEqual(large(kind, row, features), expected, "row");
        }
    }

    private static List<float[]> large(TrainerKind kind, Block layer, long features) {
        Shape input = new Shape(8, features);
        return start(kind, sequence(layer, linear(1)), input, "xavier GAUSSIAN IN");
    }

    @DataProvider
    public Object[][] blocks() {
        return new Object[][] {
            {new Shape(2, 3), embedding(), (Supplier<Block>) () -> new PlainEmbedding(16, 4)},
            {new Shape(6, 4), experts(expertParallel()), experts(expertParallel())},
            {new Shape(6, 4), experts(tensorParallel()), experts(tensorParallel())},
        };
    }

    private static Supplier<Block> embedding() {
        return () -> table(16, 4).build();
    }

    private static Supplier<Block> experts(ShardingStrategy strategy) {
        return () ->
                MixtureOfExperts.builder()
                        .setExperts(5)
                        .setHiddenFeatures(7)
                        .optGated(true)
                        .optRouterBias(true)
                        .optStrategy(strategy)
                        .build();
    }

    @Test(dataProvider = "blocks", timeOut = 60_000)
    public void otherBlocksStartAlike(Shape input, Supplier<Block> cut, Supplier<Block> plain) {
        List<float[]> expected = start(PLAIN, plain.get(), input, null);
        for (TrainerKind kind : List.of(TENSOR_1, TENSOR_2, TENSOR_3, TENSOR_4)) {
            assertAllBitEqual(start(kind, cut.get(), input, null), expected, "" + kind);
        }
    }

    /** Weights and biases; what comes after each shows where the generators were left. */
    @SuppressWarnings("try") // a trainer initializes by being open
    private static List<float[]> start(TrainerKind kind, Block block, Shape input, String name) {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(block);
            Engine.getInstance().setRandomSeed(42);
            RandomUtils.RANDOM.setSeed(43);
            DefaultTrainingConfig config = Configs.of(Loss.l2Loss());
            if (name != null) { // or each parameter has that of its block
                Initializer initializer = INITIALIZERS.get(name).get();
                config.optInitializer(initializer, Parameter.Type.WEIGHT);
                if (!(initializer instanceof XavierInitializer)) { // which needs two axes
                    config.optInitializer(initializer, Parameter.Type.BIAS);
                }
            }
            List<float[]> values = new ArrayList<>();
            try (Trainer trainer = kind.open(model, config, input);
                    NDManager manager = NDManager.newBaseManager()) {
                values.add(manager.randomNormal(new Shape(5)).toFloatArray());
            }
            values.addAll(weights(block));
            return values;
        }
    }

    /** Three layers: the second and third go on where the one before left the generator. */
    private static Block block(TrainerKind kind, long... sizes) {
        return kind.equals(PLAIN)
                ? sequence(linear(sizes[0]), linear(sizes[1]), linear(sizes[2]))
                : sequence(linear(sizes[0]), head(sizes[1]), row(sizes[2]));
    }

    /** The model may be asked for its weights before the first step. */
    @Test(timeOut = 60_000)
    public void loadedWeightsAreCutAndKept() throws Exception {
        Path folder = TestFolder.create();
        Shape input = new Shape(8, 13);

        List<float[]> saved;
        try (Model model = Blocks.model(block(PLAIN, 13, 21, 7))) {
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, input);
            model.save(folder, "net");
            saved = weights(model.getBlock());
        }
        for (TrainerKind kind : TrainerKind.all(1, 2, 3, 4)) {
            try (Model model = Blocks.model(block(kind, 13, 21, 7))) {
                model.load(folder, "net");
                try (Trainer trainer = kind.open(model, Configs.of(Loss.l2Loss()), input)) {
                    assertShards((ParallelTrainer) trainer, saved.get(2), 21, 13);
                }
                assertAllBitEqual(weights(model.getBlock()), saved, kind + ": parameter");
            }
        }
    }

    /** The second layer's weight: every rank has its rows. */
    private static void assertShards(
            ParallelTrainer trainer, float[] whole, int units, int features) {
        for (int rank = 0; rank < trainer.getRanks().size(); rank++) {
            var group = trainer.getRanks().getContext(rank).getTensorGroup();
            ShardRange own = Cut.balanced(units, group.getSize()).getRange(group.getRank());
            int start = (int) own.start() * features;
            assertExact(
                    held(trainer, rank, 2),
                    Arrays.copyOfRange(whole, start, (int) own.end() * features),
                    new Shape(own.length(), features),
                    "shard of rank " + rank);
        }
    }
}
