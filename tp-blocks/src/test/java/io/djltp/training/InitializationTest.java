package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.ArrayAssert.assertExact;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.initializer.UniformInitializer;
import ai.djl.training.initializer.XavierInitializer;
import ai.djl.training.loss.Loss;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;

/**
 * A model starts from the weights that DJL gives it with the same seed, bit for bit, whatever the
 * mode and the number of ranks; or from the weights that it was loaded with.
 */
public class InitializationTest {

    private static final int SEED = 42;

    /** An initializer that does more than fill. */
    private static final class Orthogonalized implements Initializer {
        @Override
        public NDArray initialize(NDManager manager, Shape shape, DataType type) {
            NDArray values = manager.randomNormal(shape, type);
            return values.sub(values.mean(new int[] {0}, true)).mul(0.5f);
        }
    }

    @DataProvider
    public Object[][] initializers() {
        List<Object[]> cases = new ArrayList<>();
        for (Object[] kind : TrainerKind.parallel()) {
            cases.add(new Object[] {kind[0], new XavierInitializer()});
            cases.add(new Object[] {kind[0], new NormalInitializer(0.3f)});
            cases.add(new Object[] {kind[0], new UniformInitializer(0.2f)});
            cases.add(new Object[] {kind[0], Initializer.ONES});
            cases.add(new Object[] {kind[0], Initializer.ZEROS});
            cases.add(new Object[] {kind[0], new ConstantInitializer(0.7f)});
            cases.add(new Object[] {kind[0], new Orthogonalized()});
        }
        return cases.toArray(new Object[0][]);
    }

    /** Sixteen and nine are the sizes at which libtorch changes how it draws. */
    @Test(dataProvider = "initializers", timeOut = 60_000)
    public void theSeedDecides(TrainerKind kind, Initializer initializer) {
        for (long[] sizes : new long[][] {{16, 16, 16}, {13, 21, 7}, {5, 4, 4}, {40, 64, 100}}) {
            assertSameStart(kind, initializer, sizes);
        }
    }

    @DataProvider
    public Object[][] large() {
        return new Object[][] {
            // blocks of rows of 16 MiB: three of them, the last shorter
            {70_001L, 67L, 3},
            {140_001L, 67L, 4},
            // one row more than a block: too few elements to be drawn alone
            {(1 << 22) + 1L, 1L, 2},
            {(1 << 21) + 16L, 2L, 3},
        };
    }

    @Test(dataProvider = "large", timeOut = 60_000)
    public void aLargeLayerIsDrawnInBlocks(long units, long features, int ranks) {
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
        List<float[]> expected = start(PLAIN, large(units, null), features);
        assertSame(start(kind, large(units, true), features), expected, "column");
        if (features >= ranks) {
            assertSame(start(kind, large(units, false), features), expected, "row");
        }
    }

    private static List<float[]> start(TrainerKind kind, Block block, long features) {
        return start(kind, block, new Shape(4, features), null);
    }

    /** Two layers: the second goes on where the first one left the generator. */
    private static Block large(long units, Boolean column) {
        Block layer;
        if (column == null) {
            layer = linear(units);
        } else if (column) {
            layer = ColumnParallelLinear.builder().setUnits(units).optGatherOutput(true).build();
        } else {
            layer = RowParallelLinear.builder().setUnits(units).optInputIsParallel(false).build();
        }
        return sequence(layer, linear(1));
    }

    /** The model may be asked for its weights before the first step. */
    @Test(timeOut = 60_000)
    public void loadedWeightsAreCutAndKept() throws Exception {
        Path folder = Files.createTempDirectory("initialization");
        try {
            List<float[]> saved;
            try (Model model = Model.newInstance("net")) {
                model.setBlock(block(PLAIN, 13, 21, 7));
                Engine.getInstance().setRandomSeed(SEED);
                model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, input(13));
                model.save(folder, "net");
                saved = values(model.getBlock());
            }
            for (Object[] row : TrainerKind.parallel()) {
                TrainerKind kind = (TrainerKind) row[0];
                try (Model model = Model.newInstance("net")) {
                    model.setBlock(block(kind, 13, 21, 7));
                    model.load(folder, "net");
                    Engine.getInstance().setRandomSeed(SEED + 1); // nothing is drawn
                    try (Trainer trainer = kind.open(model, config(null), input(13))) {
                        assertShards((ParallelTrainer) trainer, saved.get(2), 21, 13);
                    }
                    assertSame(values(model.getBlock()), saved, kind.toString());
                }
            }
        } finally {
            delete(folder);
        }
    }

    /** The second layer's weight: every rank has its rows. */
    private static void assertShards(
            ParallelTrainer trainer, float[] whole, int units, int features) {
        Parameter weight =
                trainer.getModel()
                        .getBlock()
                        .getChildren()
                        .values()
                        .get(1)
                        .getDirectParameters()
                        .get("weight");
        for (int rank = 0; rank < trainer.getRanks().size(); rank++) {
            var group = trainer.getRanks().getContext(rank).getTensorGroup();
            ShardRange own = Cut.balanced(units, group.getSize()).getRange(group.getRank());
            assertExact(
                    trainer.getParameterStore(rank).getValue(weight, Device.cpu(), true),
                    Arrays.copyOfRange(
                            whole, (int) own.start() * features, (int) own.end() * features),
                    new Shape(own.length(), features),
                    "shard of rank " + rank);
        }
    }

    private static void assertSameStart(TrainerKind kind, Initializer initializer, long[] sizes) {
        List<float[]> expected = start(PLAIN, block(PLAIN, sizes), input(sizes[0]), initializer);
        List<float[]> actual = start(kind, block(kind, sizes), input(sizes[0]), initializer);
        assertSame(actual, expected, kind + " " + Arrays.toString(sizes));
    }

    private static void assertSame(List<float[]> actual, List<float[]> expected, String what) {
        assertAllBitEqual(actual, expected, what + ": parameter");
    }

    private static List<float[]> start(
            TrainerKind kind, Block block, Shape input, Initializer initializer) {
        try (Model model = Model.newInstance("net")) {
            model.setBlock(block);
            Engine.getInstance().setRandomSeed(SEED);
            try (Trainer trainer = kind.open(model, config(initializer), input)) {}
            return values(block);
        }
    }

    private static DefaultTrainingConfig config(Initializer initializer) {
        DefaultTrainingConfig config = Configs.of(Loss.l2Loss());
        if (initializer != null) {
            config.optInitializer(initializer, Parameter.Type.WEIGHT);
        }
        return config;
    }

    private static Shape input(long features) {
        return new Shape(8, features);
    }

    /** Three layers: the second and third go on where the one before left the generator. */
    private static Block block(TrainerKind kind, long... sizes) {
        if (kind.equals(PLAIN)) {
            return sequence(linear(sizes[0]), linear(sizes[1]), linear(sizes[2]));
        }
        return sequence(linear(sizes[0]), column(sizes[1]), row(sizes[2]));
    }

    private static Block column(long units) {
        return head(units);
    }

    private static List<float[]> values(Block block) {
        List<float[]> values = new ArrayList<>();
        block.getParameters()
                .forEach(pair -> values.add(pair.getValue().getArray().toFloatArray()));
        return values;
    }

    private static void delete(Path folder) throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            for (Path file : files.toList()) {
                Files.delete(file);
            }
        }
        Files.delete(folder);
    }
}
