package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.internal.update.WeightUpdate;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** What a rank alone computes of its rows has the bits of what ranks compute together. */
public class HeadStatisticsTest {

    private static final int FEATURES = 16;

    @DataProvider
    public Object[][] losses() {
        LossOptions mean = new LossOptions(-100, 0, 0);
        float[] weights = new float[300];
        for (int i = 0; i < weights.length; i++) {
            weights[i] = i % 5 / 3f;
        }
        return new Object[][] {
            {1, 300, mean},
            {7, 300, mean},
            {64, 300, mean},
            {65, 2, mean},
            {33, 300, new LossOptions(-100, 0, 0, null, Reduction.SUM)},
            {33, 300, new LossOptions(-100, 0, 0, weights, Reduction.MEAN)},
        };
    }

    @Test(dataProvider = "losses", timeOut = 60_000)
    public void aRankAloneHasTheSameBits(int rows, int classes, LossOptions options)
            throws Exception {
        FusedReference data = new FusedReference(rows, FEATURES, classes);
        if (rows > 2) {
            data.labels[1] = options.ignoreIndex();
        }
        List<float[]> alone = new ArrayList<>();
        List<float[]> together = new ArrayList<>();
        RankThreads.run(
                1, (group, manager) -> alone.addAll(step(data, options, 1, group, manager)));
        RankThreads.run(
                2,
                (group, manager) -> {
                    List<float[]> own = step(data, options, 2, group, manager);
                    if (group.getRank() == 0) { // the other one has no class
                        together.addAll(own);
                    }
                });
        Assert.assertEquals(alone.size(), 3);
        for (int i = 0; i < alone.size(); i++) {
            Assert.assertEquals(together.get(i), alone.get(i), "array " + i);
        }
    }

    /** Returns the loss, the gradient of the features and the updated weight. */
    private static List<float[]> step(
            FusedReference data,
            LossOptions options,
            int ranks,
            Communicator group,
            NDManager manager) {
        boolean has = group.getRank() == 0;
        long classes = data.classes;
        Cut cut = ranks == 1 ? Cut.ofLengths(classes) : Cut.ofLengths(classes, 0);
        NDArray x = manager.create(data.x, new Shape(data.rows, FEATURES));
        Shape shape = new Shape(has ? classes : 0, FEATURES);
        NDArray weight = manager.create(has ? data.weight.clone() : new float[0], shape);
        NDArray labels = manager.create(data.labels);
        try (FusedSoftmaxHead head =
                        new FusedSoftmaxHead(group, cut, 1 << 20, 16, HeadOptions.DEFAULT);
                WeightUpdate update = WeightUpdate.sgd(WeightUpdate.Settings.DEFAULT, 0)) {
            FusedSoftmaxHead.Result result = head.evaluate(x, weight, null, labels, options);
            update.begin(0.5f, 1);
            head.update(weight, null, null, update, 1, null);
            return List.of(
                    result.value().toFloatArray(),
                    result.gradient().toFloatArray(),
                    weight.toFloatArray());
        }
    }
}
