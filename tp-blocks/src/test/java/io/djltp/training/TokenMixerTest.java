package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_3X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.function.BinaryOperator;
import java.util.function.Supplier;

/**
 * A layer over the tokens of a slice of the features, [rows, 5, 8/p]. Of a batch of one row, or of
 * a rank's part of one, libtorch drops the axis of the rows for the product.
 */
public class TokenMixerTest {

    private static final int TOKENS = 5;
    private static final int UNITS = 8;

    private static final TrainerKind[] KINDS = {
        MIXED_2,
        TENSOR_2,
        TENSOR_3,
        new TrainerKind(ParallelMode.TENSOR, UNITS),
        DATA_2,
        MESH_2X2,
        MESH_3X2
    };

    /** The rows of the batches of the steps. */
    @DataProvider
    public Object[][] rows() {
        return new Object[][] {
            {new int[] {4, 4, 1, 4, 4}}, {new int[] {3, 1, 2, 3, 1}}, {new int[] {1, 2, 3, 1, 5}}
        };
    }

    @Test(dataProvider = "rows", timeOut = 60_000)
    public void aLinearLayerOverTokens(int[] rows) {
        assertEqual(rows, () -> sequence(transposed(), linear(TOKENS), transposed()));
    }

    @Test(dataProvider = "rows", timeOut = 60_000)
    public void aParameterOfABlock(int[] rows) {
        assertEqual(rows, () -> product((x, w) -> x.transpose(0, 2, 1).matMul(w).swapAxes(1, 2)));
    }

    /** In MIXED mode, where the rows are gathered on the way, it must not come first. */
    @Test(dataProvider = "rows", timeOut = 60_000)
    public void aParameterInFront(int[] rows) {
        TrainerKind[] kinds = Arrays.copyOfRange(KINDS, 1, KINDS.length);
        network(rows, () -> product((x, w) -> w.matMul(x))).assertEqual(kinds);
    }

    /** What the product does to the axes can be written in a network, too. */
    @Test(dataProvider = "rows", timeOut = 60_000)
    public void columnsOfAllRowsInOneMatrix(int[] rows) {
        assertEqual(
                rows,
                () ->
                        product(
                                (x, w) -> {
                                    NDArray columns = x.transpose(0, 2, 1);
                                    NDArray y = columns.reshape(-1, TOKENS).matMul(w);
                                    return y.reshape(columns.getShape()).transpose(0, 2, 1);
                                }));
    }

    private static Block transposed() {
        return map(x -> x.transpose(0, 2, 1));
    }

    /** A block with a parameter of its own, [5, 5]. */
    private static Block product(BinaryOperator<NDArray> function) {
        return new GraphBlock(
                        new Shape(TOKENS, UNITS),
                        (call, in) -> new NDList(function.apply(in.head(), call.value("w"))))
                .add("w", new Shape(TOKENS, TOKENS));
    }

    private static void assertEqual(int[] rows, Supplier<Block> mixer) {
        network(rows, mixer).assertEqual(KINDS);
    }

    private static Network network(int[] rows, Supplier<Block> mixer) {
        return Network.of(
                cut -> sequence(first(cut, UNITS), mixer.get(), row(cut, 3)),
                HalfSquareLoss::new,
                (manager, step) ->
                        new NDList[] {
                            new NDList(random(manager, step, rows[step], TOKENS, 4)),
                            new NDList(random(manager, 9 + step, rows[step], TOKENS, 3))
                        });
    }
}
