package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.layout.ForwardPass;

import java.util.List;

/**
 * Checks that axis 0 of an output is the batch, where the batch is cut over the ranks. A length
 * alone does not say it: two ranks with 4 of 8 rows have an output of length 4 if it is the rows,
 * and if it is the features of a mean over the rows. What the block says of a batch of another size
 * does.
 */
final class BatchAxis {

    private BatchAxis() {}

    /**
     * Checks the outputs of a pass.
     *
     * @param block the network
     * @param data the whole batch
     * @param parts the outputs of the ranks of this process
     * @throws IllegalArgumentException if axis 0 of an output is not known to be the batch
     */
    static void check(Block block, NDList data, List<RankOutput> parts) {
        RankOutput part = parts.get(0);
        ForwardPass pass = part.getPass();
        if (pass.getRows() == 0) {
            return;
        }
        Shape[] own = null;
        Shape[] whole = null;
        for (int i = 0; i < part.arrays.size(); i++) {
            if (part.getRegion(i).isRowsCut()) {
                own = own == null ? shapes(block, data, pass.getRows()) : own;
                whole = whole == null ? shapes(block, data, pass.getGlobalRows()) : whole;
                check(pass, i, part.getWholeFeatures(i), at(own, i), at(whole, i));
            }
        }
    }

    private static void check(ForwardPass pass, int index, Shape actual, Shape own, Shape whole) {
        long rows = pass.getRows();
        long length = actual.dimension() == 0 ? 0 : actual.get(0);
        boolean fits = length > 0 && length % rows == 0;
        if (fits && actual.equals(own) && whole != null && whole.dimension() > 0) {
            // the block knows its shapes
            fits = whole.get(0) == length / rows * pass.getGlobalRows();
        } else if (fits) {
            fits = length == rows;
        }
        if (!fits) {
            throw new IllegalArgumentException(
                    "Output "
                            + index
                            + " of the network is "
                            + actual
                            + " on a rank with "
                            + rows
                            + " of the "
                            + pass.getGlobalRows()
                            + " rows of the batch. Where the batch is cut over the ranks, axis 0 of"
                            + " an output must be its rows, or the ranks' outputs cannot be put"
                            + " together: use TENSOR mode for this network. If a row becomes"
                            + " several, such as words, the block's getOutputShapes must say so");
        }
    }

    private static Shape at(Shape[] shapes, int index) {
        return index < shapes.length ? shapes[index] : null;
    }

    /** Returns the shapes of the outputs as the block knows them, or none. */
    private static Shape[] shapes(Block block, NDList data, long rows) {
        Shape[] inputs = new Shape[data.size()];
        for (int i = 0; i < inputs.length; i++) {
            NDArray array = data.get(i);
            inputs[i] = new Shape(rows).addAll(array.getShape().slice(1));
        }
        try {
            return block.getOutputShapes(inputs);
        } catch (RuntimeException e) {
            return new Shape[0]; // a block of the user's own may not know
        }
    }
}
