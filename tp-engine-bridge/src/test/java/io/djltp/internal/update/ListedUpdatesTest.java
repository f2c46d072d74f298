package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.testing.RecordedTest;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** Many weights are updated by one call, and parts of a weight as the whole, bit for bit. */
public class ListedUpdatesTest extends RecordedTest {

    private static final long[][] SHAPES = {
        {}, {1}, {9}, {7, 5}, {3, 2, 4}, {33}, {0, 3}, {2, 33_001}
    };

    @DataProvider
    public Object[][] cases() {
        WeightUpdate.Settings[] settings = {
            WeightUpdate.Settings.DEFAULT, new WeightUpdate.Settings(0.1f, 3, 0.5f)
        };
        Map<String, Function<WeightUpdate.Settings, WeightUpdate>> rules = new LinkedHashMap<>();
        for (ReferenceUpdate.Kind rule : ReferenceUpdate.Kind.OF_DJL) {
            rules.put("" + rule, rule::update);
        }
        rules.put("ADAGRAD", all -> WeightUpdate.adagrad(all, 1e-4f));
        List<Object[]> cases = new ArrayList<>();
        rules.forEach(
                (name, rule) -> {
                    for (WeightUpdate.Settings all : settings) {
                        cases.add(new Object[] {name + " " + all, rule, all, 1});
                    }
                });
        cases.add(new Object[] {"two threads", rules.get("ADAM"), settings[0], 2});
        return cases.toArray(new Object[0][]);
    }

    /** Weights of two types, and two that never have a gradient, one of which keeps none. */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void oneCallForAll(
            String name,
            Function<WeightUpdate.Settings, WeightUpdate> rule,
            WeightUpdate.Settings settings,
            int threads) {
        Autograd.setThreads(threads); // the thread is the test's own
        List<WeightUpdate> updates = new ArrayList<>();
        List<NDArray> weights = new ArrayList<>();
        for (long[] shape : SHAPES) {
            for (DataType type : new DataType[] {DataType.FLOAT32, DataType.FLOAT64}) {
                updates.add(rule.apply(settings));
                weights.add(random(manager, new Shape(shape), type));
            }
        }
        int[] calls = new int[2];
        List<float[]> one = train(updates, weights, calls, false);
        List<float[]> listed = train(updates, weights, calls, true);
        for (int i = 0; i < one.size(); i++) {
            Assert.assertEquals(listed.get(i), one.get(i), weights.get(i).toString());
        }
        boolean plain = settings.rescale() == 1;
        Assert.assertEquals(calls[0], weights.size() - 2);
        Assert.assertEquals(calls[1], plain ? 2 : weights.size() - 2);
        Assert.assertEquals(Autograd.getThreads(), threads);
    }

    private static List<float[]> train(
            List<WeightUpdate> updates, List<NDArray> begin, int[] calls, boolean listed) {
        List<float[]> values = new ArrayList<>();
        try (NDManager manager = NDManager.newBaseManager()) {
            ListedUpdates all = new ListedUpdates();
            List<NDArray> weights = new ArrayList<>();
            for (NDArray each : begin) {
                weights.add(each.duplicate());
                weights.get(weights.size() - 1).attach(manager);
            }
            for (int step = 1; step <= 3; step++) {
                manager.getEngine().setRandomSeed(step);
                calls[listed ? 1 : 0] = 0;
                for (int i = 0; i < weights.size(); i++) {
                    NDArray weight = weights.get(i);
                    updates.get(i).begin(0.1f / step, step);
                    all.add(
                            updates.get(i),
                            weight,
                            TensorView.of(random(manager, weight.getShape(), weight.getDataType())),
                            null);
                    calls[listed ? 1 : 0] += listed ? 0 : all.run();
                }
                calls[listed ? 1 : 0] += all.run();
            }
            weights.forEach(each -> values.add(each.toType(DataType.FLOAT32, true).toFloatArray()));
            updates.forEach(WeightUpdate::close); // the next begin anew
        }
        return values;
    }

    /** A weight is updated in parts by as many updates, each with the state of its part. */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void partsAsTheWhole(
            String name,
            Function<WeightUpdate.Settings, WeightUpdate> rule,
            WeightUpdate.Settings settings,
            int threads) {
        Autograd.setThreads(threads); // the thread is the test's own
        for (long[] shape : SHAPES) {
            for (DataType type : new DataType[] {DataType.FLOAT32, DataType.FLOAT16}) {
                NDArray weight = random(manager, new Shape(shape), type);
                float[] whole = inParts(rule, settings, weight, 1);
                for (int parts = 2; parts <= 3; parts++) {
                    float[] result = inParts(rule, settings, weight, parts);
                    Assert.assertEquals(result, whole, weight.getShape() + " in " + parts);
                }
            }
        }
    }

    private static float[] inParts(
            Function<WeightUpdate.Settings, WeightUpdate> rule,
            WeightUpdate.Settings settings,
            NDArray begin,
            int parts) {
        List<WeightUpdate> updates = new ArrayList<>();
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray weight = begin.duplicate();
            weight.attach(manager);
            ListedUpdates all = new ListedUpdates();
            for (int step = 1; step <= 3; step++) {
                manager.getEngine().setRandomSeed(step);
                NDArray gradient = random(manager, weight.getShape(), weight.getDataType());
                for (int part = 0; part < parts; part++) {
                    if (step == 1) {
                        updates.add(rule.apply(settings));
                    }
                    updates.get(part).begin(0.1f / step, step);
                    ShardRange range =
                            FlatGradients.cut(List.of(weight.size()), parts).get(0).getRange(part);
                    NDArray own =
                            gradient.flatten().get("{}:{}", range.start(), range.end()).duplicate();
                    all.add(
                            updates.get(part),
                            weight,
                            TensorView.of(own),
                            parts == 1 ? null : range);
                    all.run();
                }
            }
            return weight.toType(DataType.FLOAT32, true).toFloatArray();
        } finally {
            updates.forEach(WeightUpdate::close);
        }
    }

    private static NDArray random(NDManager manager, Shape shape, DataType type) {
        return manager.randomUniform(-1, 1, shape).toType(type, false);
    }
}
