package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.GraphBlock.graph;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;

import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/**
 * Networks of a slice of the features of tokens, [rows, 3, 12/p], which is followed to heads of two
 * features and to other axes.
 */
final class Slices {

    static final int ROWS = 4;
    static final int UNITS = 12;
    static final int DIM = 2; // features of a head

    private Slices() {}

    static NDArray heads(NDArray x) {
        return x.reshape(x.getShape().get(0), x.getShape().get(1), -1, DIM);
    }

    static UnaryOperator<NDArray> ofHeads(UnaryOperator<NDArray> function) {
        return x -> function.apply(heads(x)).reshape(x.getShape());
    }

    static UnaryOperator<NDArray> ofColumns(UnaryOperator<NDArray> function) {
        return x -> function.apply(x.swapAxes(1, 2)).swapAxes(1, 2);
    }

    static Network network(Supplier<Block> between) {
        return Network.of(
                cut -> {
                    Block column = sequence(reshape(-1, 3, 2), first(cut, UNITS));
                    return sequence(column, between.get(), row(cut, 3), reshape(-1, 9));
                },
                HalfSquareLoss::new,
                Network.regression(ROWS, 6, 9));
    }

    /** Three queries share keys and values, which are repeated along an axis of their own. */
    static Network grouped(int inner) {
        return Network.of(
                cut ->
                        graph(9, (call, x) -> attention(call, x.reshape(-1, 3, 2), inner))
                                .add("q", first(cut, UNITS), 3, 2)
                                .add("k", first(cut, UNITS / 3), 3, 2)
                                .add("row", row(cut, 3), 3, UNITS),
                HalfSquareLoss::new,
                Network.regression(ROWS, 6, 9));
    }

    private static NDArray attention(GraphBlock.Call call, NDArray x, int inner) {
        NDArray q = heads(call.call("q", x)).swapAxes(1, 2);
        NDArray k = heads(call.call("k", x)).swapAxes(1, 2);
        Shape all = k.getShape(); // [rows, groups, tokens, dim]
        k = k.expandDims(1 + inner);
        long[] wide = k.getShape().getShape().clone();
        wide[1 + inner] = 3;
        k = k.broadcast(new Shape(wide)).reshape(all.get(0), -1, all.get(2), all.get(3));
        NDArray y = q.matMul(k.swapAxes(2, 3)).softmax(-1).matMul(k).swapAxes(1, 2);
        return call.call("row", y.reshape(all.get(0), all.get(2), -1)).reshape(-1, 9);
    }
}
