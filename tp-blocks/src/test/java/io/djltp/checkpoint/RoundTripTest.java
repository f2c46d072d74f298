package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.util.Utils;

import com.google.gson.JsonObject;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.sharding.AxisPart;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/**
 * What p ranks wrote, q ranks read bit for bit, however either cut it. Longer: {@code
 * -Ddjltp.checkpoint.cases=2000}.
 */
public class RoundTripTest extends RecordedTest {

    private static final int CASES = Integer.getInteger("djltp.checkpoint.cases", 40);
    private static final int TENSORS = 5;
    private static final List<Integer> SIZES = List.of(1, 2, 3, 4, 8);
    private static final List<DataType> TYPES =
            List.of(
                    DataType.FLOAT32,
                    DataType.FLOAT32,
                    DataType.FLOAT64,
                    DataType.FLOAT16,
                    DataType.INT64,
                    DataType.INT32,
                    DataType.INT8,
                    DataType.UINT8,
                    DataType.BOOLEAN);

    /** A tensor with the strategies that can cut it. */
    private record Weight(Shape shape, List<ShardingStrategy> strategies) {

        static Weight random(Random random) {
            int heads = 8 * (1 + random.nextInt(2));
            int keyHeads = List.of(1, 2, 4, 8).get(random.nextInt(4));
            int dim = 1 + random.nextInt(5);
            long other = 1 + random.nextInt(9);
            switch (random.nextInt(6)) {
                case 0:
                    return new Weight(
                            new Shape(3L * heads * dim, other),
                            List.of(
                                    ShardingStrategy.stackedQkv(heads, dim),
                                    ShardingStrategy.rowwise()));
                case 1:
                    return new Weight(
                            new Shape((heads + 2L * keyHeads) * dim, other),
                            List.of(
                                    ShardingStrategy.stackedQkv(heads, keyHeads, dim),
                                    ShardingStrategy.rowwise()));
                case 2:
                    return new Weight(
                            new Shape(2L * (8 + random.nextInt(9)), 8 + other),
                            List.of(
                                    ShardingStrategy.gateUp(),
                                    ShardingStrategy.rowwise(),
                                    ShardingStrategy.columnwise()));
                case 3:
                    return new Weight(
                            new Shape(7 + other, (long) heads * dim),
                            List.of(
                                    ShardingStrategy.headAwareColumnwise(heads, dim),
                                    ShardingStrategy.columnwise()));
                case 4:
                    return new Weight(
                            new Shape((long) keyHeads * dim, 8 + other),
                            List.of(
                                    ShardingStrategy.keyValueRowwise(heads, keyHeads, dim),
                                    ShardingStrategy.columnwise()));
                default:
                    long length = 11 + random.nextInt(9);
                    return new Weight(
                            new Shape(8 + random.nextInt(3), 2 + length, 8 + other),
                            List.of(
                                    ShardingStrategy.axiswise(0),
                                    ShardingStrategy.axiswise(-1),
                                    ShardingStrategy.segmented(
                                            1, AxisPart.even(2), AxisPart.even(length)),
                                    ShardingStrategy.replicate()));
            }
        }

        /** Returns a cut for a number of ranks: of a strategy, a chosen one, or none. */
        CutTensor cut(String name, DataType type, int ranks, Random random) {
            int choice = random.nextInt(4);
            if (choice == 0) {
                return CutTensor.whole(name, type, shape);
            }
            int axis = random.nextInt(shape.dimension());
            if (choice == 1) {
                return new CutTensor(
                        name, type, shape, axis, anyCut(shape.get(axis), ranks, random));
            }
            ShardingStrategy strategy = strategies.get(random.nextInt(strategies.size()));
            axis = strategy.axis(shape);
            return new CutTensor(name, type, shape, axis, strategy.cut(shape, ranks));
        }
    }

    /** Returns any ranges in any order: every stretch of the axis is on one rank or several. */
    private static Cut anyCut(long length, int ranks, Random random) {
        List<List<ShardRange>> ranges = new ArrayList<>();
        for (int rank = 0; rank < ranks; rank++) {
            ranges.add(new ArrayList<>());
        }
        long at = 0;
        while (at < length) {
            long count = 1 + random.nextInt((int) (length - at));
            ShardRange range = new ShardRange(at, count);
            int owner = random.nextInt(ranks);
            for (int rank = 0; rank < ranks; rank++) {
                if (rank == owner || random.nextInt(4) == 0) {
                    List<ShardRange> own = ranges.get(rank);
                    own.add(random.nextInt(own.size() + 1), range);
                }
            }
            at += count;
        }
        return Cut.of(length, ranks, ranges::get);
    }

    @Test
    public void testWhatAnyRanksWroteIsReadByAnyOthers() throws IOException {
        for (int seed = 0; seed < CASES; seed++) {
            Path folder = Files.createTempDirectory("round");
            try (NDManager manager = NDManager.newBaseManager()) {
                testCase(folder, manager, new Random(seed));
            } catch (AssertionError | RuntimeException e) {
                throw new AssertionError("seed " + seed + ": " + e.getMessage(), e);
            } finally {
                Utils.deleteQuietly(folder);
            }
        }
    }

    private static void testCase(Path folder, NDManager manager, Random random) throws IOException {
        int written = SIZES.get(random.nextInt(SIZES.size()));
        int read = SIZES.get(random.nextInt(SIZES.size()));
        List<Weight> weights = new ArrayList<>();
        List<CutTensor> tensors = new ArrayList<>();
        Map<String, NDArray> whole = new HashMap<>();
        for (int i = 0; i < TENSORS; i++) {
            Weight weight = Weight.random(random);
            DataType type = TYPES.get(random.nextInt(TYPES.size()));
            CutTensor tensor = weight.cut("block/" + i + "_weight", type, written, random);
            weights.add(weight);
            tensors.add(tensor);
            whole.put(tensor.name(), Checkpoints.random(manager, type, tensor.shape(), random));
        }
        Checkpoints.write(folder, 7, written, tensors, whole, new JsonObject());
        try (Checkpoint checkpoint = Checkpoint.open(folder.resolve("step-00000007"))) {
            Assert.assertEquals(List.copyOf(checkpoint.getTensors().values()), tensors);
            Assert.assertEquals(checkpoint.verify(), List.of());
            for (int i = 0; i < TENSORS; i++) {
                CutTensor tensor = tensors.get(i);
                NDArray expected = whole.get(tensor.name());
                CutTensor other = weights.get(i).cut(tensor.name(), tensor.type(), read, random);
                assertSame(checkpoint.read(tensor.name(), manager), expected, tensor, "whole");
                for (int rank = 0; !other.isWhole() && rank < read; rank++) {
                    List<ShardRange> ranges = other.cut().getRanges(rank);
                    assertSame(
                            checkpoint.read(tensor.name(), other.axis(), ranges, manager),
                            Checkpoints.slice(expected, other.axis(), ranges),
                            tensor,
                            "axis " + other.axis() + " " + ranges);
                }
            }
        }
    }

    private static void assertSame(NDArray actual, NDArray expected, CutTensor from, String what) {
        Assert.assertEquals(actual.getShape(), expected.getShape(), from + ", " + what);
        Assert.assertEquals(actual.getDataType(), expected.getDataType(), from + ", " + what);
        Assert.assertEquals(
                Checkpoints.bits(actual), Checkpoints.bits(expected), from + ", " + what);
    }

    @Test
    public void testScalarsAndTensorsWithoutElements() throws IOException {
        Path folder = TestFolder.create();
        Shape none = new Shape(0, 3);
        List<CutTensor> tensors =
                List.of(
                        CutTensor.whole("scalar", DataType.FLOAT64, new Shape()),
                        new CutTensor("none", DataType.INT64, none, 0, Cut.balanced(0, 2)),
                        CutTensor.whole("last", DataType.INT8, new Shape(1)));
        Map<String, NDArray> whole =
                Map.of(
                        "scalar", manager.create(Math.PI),
                        "none", manager.create(none, DataType.INT64),
                        "last", manager.create(new byte[] {5}));
        Checkpoints.write(folder, 0, 2, tensors, whole, new JsonObject());
        try (Checkpoint checkpoint = Checkpoint.open(folder.resolve("step-00000000"))) {
            Assert.assertEquals(checkpoint.read("scalar", manager).getDouble(), Math.PI, 0);
            Assert.assertEquals(checkpoint.read("none", manager).getShape(), none);
            Assert.assertEquals(checkpoint.read("last", manager).getByte(), 5);
        }
    }

    @Test
    public void testACheckpointIsWrittenAgainForOtherRanks() throws IOException {
        Path folder = TestFolder.create();
        Random random = new Random(3);
        List<CutTensor> tensors =
                List.of(
                        tensor(1, Cut.balanced(1200, 3), 1000, 1200),
                        tensor(0, anyCut(900, 3, random), 900, 1300),
                        CutTensor.whole("scalar", DataType.FLOAT32, new Shape()),
                        tensor(1, Cut.ofLengths(0, 3, 2), 1, 5, 260_000));
        Map<String, NDArray> whole = new HashMap<>();
        for (CutTensor each : tensors) {
            whole.put(each.name(), Checkpoints.random(manager, each.type(), each.shape(), random));
        }
        Checkpoints.write(folder.resolve("3"), 5, 3, tensors, whole, new JsonObject());
        try (Checkpoint from = Checkpoint.open(folder.resolve("3/step-00000005"));
                Checkpoint again = from.reshard(folder.resolve("2"), 2)) {
            Assert.assertEquals(again.getFiles().size(), 2);
            Assert.assertEquals(again.getValues(), from.getValues());
            for (CutTensor each : tensors) {
                assertSame(
                        again.read(each.name(), manager),
                        whole.get(each.name()),
                        again.getTensor(each.name()),
                        "whole");
            }
        }
    }

    private static CutTensor tensor(int axis, Cut cut, long... shape) {
        Shape whole = new Shape(shape);
        return new CutTensor("w" + whole, DataType.FLOAT32, whole, axis, cut);
    }

    /** The rows of a transposed array do not lie one after another in memory. */
    @Test
    public void testAnArrayThatIsNotContiguous() throws IOException {
        Path folder = TestFolder.create();
        Shape shape = new Shape(3000, 500); // more than a chunk
        NDArray array =
                Checkpoints.random(manager, DataType.FLOAT32, shape, new Random(1)).transpose();
        CutTensor tensor = CutTensor.whole("w", DataType.FLOAT32, array.getShape());
        Checkpoints.write(folder, 1, 1, List.of(tensor), Map.of("w", array), new JsonObject());
        try (Checkpoint checkpoint = Checkpoint.open(folder.resolve("step-00000001"))) {
            assertSame(checkpoint.read("w", manager), array, tensor, "whole");
        }
    }
}
