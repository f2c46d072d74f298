package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;

import io.djltp.loss.MeanLosses;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.function.UnaryOperator;

/**
 * DJL's softmax cross entropy over any axis: a softmax over the rows is no mean over them, so that
 * no rank can compute that of its own.
 */
public class ClassAxisTest {

    private static final int ROWS = 7;

    private static final TrainerKind[] KINDS = {
        DATA_3, MIXED_2, MESH_2X2, TENSOR_2,
    };

    @DataProvider
    public Object[][] axes() {
        UnaryOperator<NDArray> flat = x -> x;
        UnaryOperator<NDArray> deep = x -> x.reshape(-1, 3, 2);
        return new Object[][] {
            {0, flat},
            {-2, flat},
            {1, flat},
            {-1, flat},
            {0, deep},
            {-3, deep},
            {1, deep},
            {-1, deep},
        };
    }

    @Test(dataProvider = "axes", timeOut = 120_000)
    public void equalsDjl(int axis, UnaryOperator<NDArray> shaped) {
        Network.of(
                        cut -> sequence(linear(6), first(cut, 4), row(cut, 6), tanh(), map(shaped)),
                        () -> new SoftmaxCrossEntropyLoss("loss", 1, axis, false, true),
                        (manager, step) -> {
                            NDArray targets = random(manager, 50 + step, ROWS, 6);
                            return new NDList[] {
                                new NDList(random(manager, 10 + step, ROWS, 5)),
                                new NDList(shaped.apply(targets.softmax(1)))
                            };
                        })
                .assertEqual(KINDS);
    }

    /** Whether each rank can compute the loss of its rows, and nothing is gathered. */
    @DataProvider
    public Object[][] means() {
        return new Object[][] {
            {-1, true, new Shape(5, 4), true},
            {-1, true, new Shape(5, 4), true},
            {1, true, new Shape(5, 4), true},
            {-1, false, new Shape(5, 4), true},
            {0, false, new Shape(5, 4), false},
            {-2, false, new Shape(5, 4), false},
            {-2, false, new Shape(5, 4, 3), true},
            {2, true, new Shape(5, 3, 4), true},
            {-1, false, new Shape(5, 1), true},
            {0, false, new Shape(5, 1), false},
        };
    }

    @Test(dataProvider = "means")
    public void meansOverRows(int axis, boolean sparse, Shape predictions, boolean expected) {
        Loss loss = new SoftmaxCrossEntropyLoss("loss", 1, axis, sparse, true);
        assertEquals(MeanLosses.contains(loss, predictions), expected);
    }
}
