package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;

import io.djltp.bridge.Autograd;
import io.djltp.collective.ShardRange;
import io.djltp.mesh.ParallelContext;
import io.djltp.mesh.ParallelMode;

/** Which rows of a batch a rank gets. */
final class BatchPart {

    private BatchPart() {}

    /**
     * Checks that every rank gets a row.
     *
     * @param mode how the ranks share the work
     * @param data the batch
     * @param ranks the number of ranks over which it is cut
     */
    static void check(ParallelMode mode, NDList data, int ranks) {
        if (mode == ParallelMode.TENSOR || ranks == 1) {
            return;
        }
        for (NDArray array : data) {
            long rows = array.getShape().dimension() == 0 ? 0 : array.getShape().get(0);
            if (rows < ranks) {
                throw new IllegalArgumentException(
                        "A batch of "
                                + rows
                                + " rows cannot be cut over "
                                + ranks
                                + " ranks in "
                                + mode
                                + " mode: every rank needs one row or more. Use a batch size of at"
                                + " least "
                                + ranks
                                + " and drop an incomplete last batch (setSampling(batchSize,"
                                + " shuffle, true)).");
            }
            if (rows != data.head().getShape().get(0)) {
                throw new IllegalArgumentException(
                        "The arrays of a batch differ in axis 0, over which it is cut in "
                                + mode
                                + " mode: "
                                + data.head().getShape()
                                + " and "
                                + array.getShape());
            }
        }
    }

    /**
     * Returns a rank's part of some arrays, without a copy where the rank is on the same device.
     *
     * @param arrays the arrays of the whole batch
     * @param context the rank
     * @param cut whether the rank gets its rows only, or all
     * @param manager the manager of the part
     * @return the part
     */
    static NDList of(NDList arrays, ParallelContext context, boolean cut, NDManager manager) {
        NDList part = new NDList(arrays.size());
        for (NDArray array : arrays) {
            NDArray own;
            if (cut && context.getDataGroup().getSize() > 1) {
                ShardRange rows =
                        ShardRange.balanced(
                                array.getShape().get(0),
                                context.getDataGroup().getRank(),
                                context.getDataGroup().getSize());
                own = array.get(new NDIndex().addSliceDim(rows.start(), rows.end()));
                own.attach(manager);
            } else {
                own = Autograd.detach(array, manager);
            }
            if (!own.getDevice().equals(context.getDevice())) {
                own = own.toDevice(context.getDevice(), false);
            }
            own.setName(array.getName());
            part.add(own);
        }
        return part;
    }
}
