package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
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
import ai.djl.training.initializer.TruncatedNormalInitializer;
import ai.djl.training.initializer.UniformInitializer;
import ai.djl.training.initializer.XavierInitializer;
import ai.djl.training.initializer.XavierInitializer.FactorType;
import ai.djl.training.initializer.XavierInitializer.RandomType;
import ai.djl.training.loss.Loss;
import ai.djl.util.RandomUtils;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.Supplier;

/**
 * A parameter that is cut starts with the bits that DJL gives it, whatever its initializer does:
 * all of DJL's, and some that draw twice, look at what they have drawn, or change it.
 */
public class InitializersTest {

    private static final int FEATURES = 13; // cut unevenly by 2, 3 and 4, as are the units
    private static final int UNITS = 21;

    @DataProvider
    public Object[][] initializers() {
        Map<String, Supplier<Initializer>> all = new LinkedHashMap<>();
        all.put("zeros", () -> Initializer.ZEROS);
        all.put("ones", () -> Initializer.ONES);
        all.put("constant", () -> new ConstantInitializer(0.3f));
        all.put("normal", () -> new NormalInitializer(0.2f));
        all.put("truncated normal", () -> new TruncatedNormalInitializer(0.5f));
        all.put("uniform", () -> new UniformInitializer(0.4f));
        for (RandomType random : RandomType.values()) {
            for (FactorType factor : FactorType.values()) {
                all.put(
                        "xavier " + random + " " + factor,
                        () -> new XavierInitializer(random, factor, 3));
            }
        }
        all.put("drawn twice", () -> InitializersTest::drawnTwice);
        all.put("scaled in place", () -> (m, s, t) -> m.randomNormal(s, t).muli(0.25f));
        all.put("first element set", () -> InitializersTest::firstElementSet);
        all.put("read", () -> InitializersTest::dividedByItsLength);
        all.put("read and returned", () -> InitializersTest::drawnUntilLargeEnough);
        all.put("as the second operand", () -> InitializersTest::secondOperand);
        all.put("in a list", () -> InitializersTest::meanOfTwo);
        all.put("of a sub manager", () -> InitializersTest::ofSubManager);
        all.put("drawn after it", () -> InitializersTest::drawnAfterwards);
        all.put("of Java's generator", () -> InitializersTest::gaussianOfJava);
        all.put("of its own generator", InitializersTest::ownGenerator);
        List<Object[]> cases = new ArrayList<>();
        all.forEach((name, initializer) -> cases.add(new Object[] {name, initializer}));
        return cases.toArray(new Object[0][]);
    }

    private static NDArray drawnTwice(NDManager manager, Shape shape, DataType type) {
        return manager.randomNormal(shape, type).add(manager.randomUniform(-1, 1, shape, type));
    }

    private static NDArray firstElementSet(NDManager manager, Shape shape, DataType type) {
        NDArray values = manager.randomUniform(0, 1, shape, type);
        long[] first = new long[shape.dimension()];
        values.set(new ai.djl.ndarray.index.NDIndex(first), 7f);
        return values;
    }

    private static NDArray dividedByItsLength(NDManager manager, Shape shape, DataType type) {
        NDArray values = manager.randomNormal(shape, type);
        float length = values.norm().getFloat();
        return values.div(length);
    }

    private static NDArray drawnUntilLargeEnough(NDManager manager, Shape shape, DataType type) {
        NDArray values = manager.randomNormal(shape, type);
        while (values.max().getFloat() < 1.5f) {
            values = manager.randomNormal(shape, type);
        }
        return values;
    }

    private static NDArray secondOperand(NDManager manager, Shape shape, DataType type) {
        NDArray values = manager.randomNormal(shape, type);
        return manager.ones(shape, type).sub(values);
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

    private static Initializer ownGenerator() {
        Random random = new Random(5);
        return (manager, shape, type) -> {
            NDArray values = manager.randomUniform(0, 1, shape, type);
            return values.mul(random.nextFloat());
        };
    }

    @Test(dataProvider = "initializers", timeOut = 60_000)
    public void theBitsAreThoseOfDjl(String name, Supplier<Initializer> initializer) {
        List<float[]> expected = start(PLAIN, initializer.get());
        for (int ranks = 1; ranks <= 4; ranks++) {
            TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
            List<float[]> actual = start(kind, initializer.get());
            assertAllBitEqual(actual, expected, name + ", " + kind + ", parameter");
        }
    }

    /** Weights and biases; what comes after each shows where the generators were left. */
    private static List<float[]> start(TrainerKind kind, Initializer initializer) {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(block(kind));
            Engine.getInstance().setRandomSeed(42);
            RandomUtils.RANDOM.setSeed(43);
            DefaultTrainingConfig config =
                    Configs.of(Loss.l2Loss()).optInitializer(initializer, Parameter.Type.WEIGHT);
            if (!(initializer instanceof XavierInitializer)) { // which needs two axes
                config.optInitializer(initializer, Parameter.Type.BIAS);
            }
            List<float[]> values = new ArrayList<>();
            try (Trainer trainer = kind.open(model, config, new Shape(4, FEATURES))) {
                try (NDManager manager = NDManager.newBaseManager()) {
                    values.add(manager.randomNormal(new Shape(5)).toFloatArray());
                }
            }
            model.getBlock()
                    .getParameters()
                    .forEach(pair -> values.add(pair.getValue().getArray().toFloatArray()));
            return values;
        }
    }

    private static Block block(TrainerKind kind) {
        if (kind.equals(PLAIN)) {
            return sequence(linear(UNITS), linear(FEATURES), linear(3));
        }
        return sequence(column(UNITS), row(FEATURES), linear(3));
    }
}
