package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.flatten;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.PlainEmbedding;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.function.Function;
import java.util.function.UnaryOperator;

/**
 * Where the batch is cut, rows that an operation puts in another order are refused, and rows that
 * are joined for a while, or lie along another axis, are not.
 */
public class RowOrderTest {

    private static final int ROWS = 7;
    private static final int FEATURES = 6;

    private interface Operation extends UnaryOperator<NDArray> {}

    private static Object[] of(String name, Operation operation) {
        return new Object[] {name, operation};
    }

    @DataProvider
    public Object[][] reordered() {
        return new Object[][] {
            of("concat", x -> x.concat(x.mul(2), 0)),
            of("concat", x -> x.concat(x.mul(2), 0).expandDims(1).tanh().squeeze(1)),
            of("concat", x -> x.transpose().concat(x.transpose(), 1).transpose()),
            of("flip", x -> x.flip(0)),
            of("flip", x -> x.flip(0).add(x)),
        };
    }

    @Test(dataProvider = "reordered", timeOut = 60_000)
    public void rowsInAnotherOrder(String name, Operation operation) {
        boolean twice = name.equals("concat");
        Network before =
                network(
                        twice,
                        cut -> sequence(linear(6), map(operation), first(cut, 4), row(cut, 3)));
        Network after =
                network(
                        twice,
                        cut -> sequence(linear(6), first(cut, 4), row(cut, 3), map(operation)));
        before.assertRefused(DATA_2, name, "another order", "TENSOR mode");
        before.assertRefused(MESH_2X2, name, "another order", "TENSOR mode");
        before.assertRefused(MIXED_2, twice ? "gathers the batch" : "another order", "TENSOR mode");
        after.assertRefused(DATA_2, name, "another order", "TENSOR mode");
        after.assertRefused(MESH_2X2, name, "another order", "TENSOR mode");
        before.assertEqual(TENSOR_2);
        after.assertEqual(TENSOR_2);
    }

    /** Ids are not in the graph. */
    @Test(timeOut = 60_000)
    public void rowsOfIds() {
        Network net =
                Network.of(
                        cut ->
                                sequence(
                                        new PlainEmbedding(3 * ROWS, 2),
                                        map(x -> x.concat(x.mul(2), 0)),
                                        flatten(),
                                        first(cut, 3)),
                        HalfSquareLoss::new,
                        (manager, step) ->
                                new NDList[] {
                                    new NDList(
                                            manager.arange(3f * ROWS)
                                                    .reshape(ROWS, 3)
                                                    .toType(DataType.INT64, false)),
                                    new NDList(manager.ones(new Shape(2 * ROWS, 3)))
                                });
        net.assertRefused(DATA_2, "concat", "another order", "TENSOR mode");
    }

    @DataProvider
    public Object[][] inOrder() {
        return new Object[][] {
            of("taken apart", x -> halves(x.concat(x.mul(2), 0).tanh())),
            of("an axis for the two", RowOrderTest::meanOfTwo),
            of("along the features", x -> x.concat(x.mul(2), 1).flip(1).get(":, :6")),
            of("along time", x -> x.reshape(-1, 3, 2).swapAxes(0, 1).flip(0).mean(new int[] {0})),
            of("row by row", RowOrderTest::rowByRow),
            of("there and back", x -> x.flip(0).tanh().flip(0)),
        };
    }

    @Test(dataProvider = "inOrder", timeOut = 60_000)
    public void rowsInTheirOrder(String name, Operation operation) {
        network(false, cut -> sequence(linear(6), map(operation), first(cut, 4), row(cut, 3)))
                .assertEqual(DATA_2, MIXED_2, MESH_2X2, TENSOR_2);
    }

    /** The two of a row lie together: what the error says instead. */
    @Test(timeOut = 60_000)
    public void rowsThatBecomeTwo() {
        Operation two = x -> x.stack(x.mul(2), 1).reshape(-1, x.getShape().get(1));
        Operation blocks =
                x ->
                        x.concat(x.mul(2), 0)
                                .reshape(2, x.getShape().get(0), -1)
                                .swapAxes(0, 1)
                                .reshape(-1, x.getShape().get(1));
        for (Operation operation : List.of(two, blocks)) {
            network(true, cut -> sequence(linear(6), tanh(), linear(3), map(operation)))
                    .assertEqual(DATA_2, MESH_2X2, TENSOR_2);
        }
    }

    private static NDArray halves(NDArray x) {
        long rows = x.getShape().get(0) / 2;
        return x.get(new NDIndex().addSliceDim(0, rows))
                .add(x.get(new NDIndex().addSliceDim(rows, 2 * rows)));
    }

    private static NDArray meanOfTwo(NDArray x) {
        NDArray both = x.concat(x.square(), 0).tanh();
        return both.reshape(2, x.getShape().get(0), -1).mean(new int[] {0});
    }

    private static NDArray rowByRow(NDArray x) {
        NDList rows = new NDList();
        for (long i = 0; i < x.getShape().get(0); i++) {
            rows.add(x.get(new NDIndex().addSliceDim(i, i + 1)).tanh());
        }
        return rows.size() == 1 ? rows.head() : NDArrays.concat(rows);
    }

    private static Network network(boolean twice, Function<Boolean, Block> block) {
        return Network.of(
                block,
                HalfSquareLoss::new,
                (manager, step) ->
                        new NDList[] {
                            new NDList(random(manager, 10 + step, ROWS, FEATURES)),
                            new NDList(random(manager, 50 + step, (twice ? 2 : 1) * ROWS, 3))
                        });
    }
}
