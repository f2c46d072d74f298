package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.ArrayMemory;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.HostReads;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;

/**
 * Which rows of a batch a rank gets. A rank that a small batch leaves without a row gets the first
 * one, to go through the network with the others; what it computes of it does not count.
 */
@SuppressWarnings("try") // a scope is used by being open
final class BatchPart {

    private BatchPart() {}

    /**
     * Checks that a batch can be handed out, before a rank has begun.
     *
     * @param config how the ranks share the work
     * @param data the batch
     */
    static void check(ParallelConfig config, NDList data) {
        Errors.check(
                !data.isEmpty(),
                "The batch has no arrays: pass the inputs of the network, such as"
                        + " batch.getData()");
        for (NDArray array : data) {
            if (array.getShape().size() == 0) {
                boolean rows = array.getShape().get(0) == 0; // of a scalar the size is 1
                throw Errors.argument(
                        "%s%s. Leave empty batches%s out of the data set",
                        (rows ? "The batch has no rows: " : "The rows of the batch are empty: "),
                        array.getShape(),
                        (rows ? "" : ", and sequences of length 0,"));
            }
            if (config.getMesh().isCut(DeviceMesh.DATA)) {
                checkRows(config, data.head(), array);
            }
        }
    }

    private static void checkRows(ParallelConfig config, NDArray first, NDArray array) {
        if (array.getShape().dimension() == 0
                || first.getShape().get(0) != array.getShape().get(0)) {
            throw Errors.argument(
                    "The arrays of a batch must have one length of axis 0, over which it is cut"
                            + " in %s: %s and %s. What is not of rows, such as a table for all of"
                            + " them, is repeated for each row, or is a parameter or a constant"
                            + " of the block that uses it; or use TENSOR mode, where nothing is"
                            + " cut",
                    config.describe(), first.getShape(), array.getShape());
        }
    }

    /**
     * Returns the number of rows of a batch.
     *
     * @param data the batch
     * @return the length of axis 0, or 1 if there is none
     */
    static long rowsOf(NDList data) {
        return data.head().getShape().dimension() == 0 ? 1 : data.head().getShape().get(0);
    }

    /**
     * Returns the rows that a rank of the data-parallel group has of its own.
     *
     * @param rows the rows of the whole batch
     * @param context the rank
     * @param cut whether the rank gets its rows only, or all
     * @return the range of rows; empty on a rank for which there is none
     */
    static ShardRange rows(long rows, ParallelContext context, boolean cut) {
        int ranks = context.getDataGroup().getSize();
        return cut && ranks > 1
                ? Cut.balanced(rows, ranks).getRange(context.getDataGroup().getRank())
                : new ShardRange(0, rows);
    }

    /**
     * Returns a rank's part of some arrays, without a copy where the rank is on the same device and
     * the part is aligned. It is no part of a graph.
     *
     * @param arrays the arrays of the whole batch
     * @param context the rank
     * @param batchRows the rows of the batch, of which each array has as many or a multiple; or 0
     *     for the whole arrays
     * @param manager the manager of the part
     * @return the part
     * @throws IllegalArgumentException if an array holds strings, of which libtorch has no tensor
     */
    static NDList of(NDList arrays, ParallelContext context, long batchRows, NDManager manager) {
        try (Autograd.GradMode mode = Autograd.gradMode(false)) { // a graph ends with the rank
            return parts(arrays, context, batchRows, manager);
        }
    }

    private static NDList parts(
            NDList arrays, ParallelContext context, long batchRows, NDManager manager) {
        NDList part = new NDList(arrays.size());
        for (NDArray array : arrays) {
            if (array.getDataType() == DataType.STRING) {
                throw Errors.argument(
                        "An array %s of the batch holds strings, which ranks cannot compute"
                                + " with: give numbers, such as those of classes or of words",
                        array.getShape());
            }
            NDArray own;
            if (batchRows > 0) {
                long times = array.getShape().get(0) / batchRows;
                ShardRange rows = rows(batchRows, context, true);
                long start = rows.length() == 0 ? 0 : rows.start(); // the first one for no other
                long end = rows.length() == 0 ? 1 : rows.end();
                own = array.get(new NDIndex().addSliceDim(start * times, end * times));
                own.attach(manager);
            } else {
                own = Autograd.detach(array, manager);
            }
            if (!own.getDevice().equals(context.getDevice())) {
                own = HostReads.toDevice(own, context.getDevice());
                own.attach(manager);
            }
            own = ArrayMemory.aligned(own); // a pass that is watched copies, and has the same bits
            own.setName(array.getName());
            part.add(own);
        }
        return part;
    }

    /**
     * Returns whether arrays can be cut over the ranks as a batch is.
     *
     * @param arrays the arrays
     * @param batchRows the rows of the batch
     * @return whether axis 0 of each has as many, or a multiple
     */
    static boolean canCut(NDList arrays, long batchRows) {
        return arrays.stream()
                .allMatch(
                        array ->
                                array.getShape().dimension() > 0
                                        && array.getShape().get(0) > 0
                                        && array.getShape().get(0) % batchRows == 0);
    }
}
