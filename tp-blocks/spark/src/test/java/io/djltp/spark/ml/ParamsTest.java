package io.djltp.spark.ml;

import org.apache.spark.ml.param.Param;
import org.apache.spark.ml.param.ParamMap;
import org.apache.spark.ml.param.Params;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.Map;

/** The parameters are what the rest of Spark ML expects of them. */
public class ParamsTest {

    /** Values that none of them has by default. */
    private static final Map<Class<?>, Object> OTHER =
            Map.of(
                    int.class,
                    17,
                    long.class,
                    18L,
                    double.class,
                    0.75,
                    boolean.class,
                    false,
                    String.class,
                    "other",
                    String[].class,
                    new String[] {"a=1", "b=2"},
                    int[].class,
                    new int[] {3, 4},
                    double[].class,
                    new double[] {5, 6});

    @DataProvider
    public Object[][] stages() {
        return new Object[][] {
            {new ParallelClassifier(), 29}, {new ParallelClassificationModel("model", null), 4}
        };
    }

    @Test(dataProvider = "stages")
    public void eachCanBeSetReadCopiedAndExplained(Params stage, int count) throws Exception {
        Assert.assertEquals(stage.params().length, count);
        for (Param<?> param : stage.params()) {
            Object before = read(stage, param);
            Assert.assertTrue(Arrays.deepEquals(a(before), a(stage.getOrDefault(param))));
            Object other =
                    switch (param.name()) {
                        case "optimizer" -> "sgd";
                        case "loss" -> "one-vs-all";
                        default -> OTHER.get(getter(stage, param).getReturnType());
                    };
            Assert.assertFalse(Arrays.deepEquals(a(before), a(other)), param.name());

            Params copy = stage.copy(new ParamMap().put(asObject(param), other));
            Assert.assertTrue(Arrays.deepEquals(a(read(copy, param)), a(other)), param.name());
            Assert.assertTrue(Arrays.deepEquals(a(read(stage, param)), a(before)), param.name());

            Assert.assertSame(setter(stage, param).invoke(stage, other), stage);
            Assert.assertTrue(Arrays.deepEquals(a(read(stage, param)), a(other)), param.name());
            Assert.assertTrue(
                    stage.explainParams()
                            .contains(param.name() + ": " + param.doc() + " (default: "),
                    stage.explainParams());
            stage.clear(param);
            Assert.assertTrue(Arrays.deepEquals(a(read(stage, param)), a(before)), "default");
        }
    }

    @SuppressWarnings("unchecked")
    private static Param<Object> asObject(Param<?> param) {
        return (Param<Object>) param;
    }

    private static Object[] a(Object value) {
        return new Object[] {value};
    }

    private static String name(String verb, Param<?> param) {
        return verb + Character.toUpperCase(param.name().charAt(0)) + param.name().substring(1);
    }

    private static Method getter(Params stage, Param<?> param) throws NoSuchMethodException {
        return stage.getClass().getMethod(name("get", param));
    }

    private static Object read(Params stage, Param<?> param) throws ReflectiveOperationException {
        return getter(stage, param).invoke(stage);
    }

    private static Method setter(Params stage, Param<?> param) throws NoSuchMethodException {
        return stage.getClass().getMethod(name("set", param), getter(stage, param).getReturnType());
    }
}
