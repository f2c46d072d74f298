package io.djltp.internal.rank;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.collective.GatheredNumbers;
import io.djltp.internal.layout.ForwardPass;

import java.util.Arrays;

/** Puts the rows of the data group's ranks together on each of them, as a part of the graph. */
public final class DataRows {

    private DataRows() {}

    /**
     * Returns the rows of all ranks. Backward, a rank gets the gradient of its own rows.
     *
     * @param context the rank
     * @param own the rank's rows, [rows, ...], or a multiple of them where a row has become
     *     several; on a rank without a row, what it has computed of another's is left out
     * @param what what it is, for errors
     * @return the rows, in the order of the ranks, attached to the manager of {@code own}
     * @throws IllegalArgumentException if axis 0 is not the rows
     */
    public static NDArray gather(ParallelContext context, NDArray own, String what) {
        ForwardPass pass = context.getPass();
        Shape shape = own.getShape();
        Errors.check(
                shape.dimension() != 0 && shape.get(0) % Math.max(1, pass.getRows()) == 0,
                "%s is %s on a rank with %s of the %s rows of the batch. Where the batch is cut"
                        + " over the ranks, axis 0 must be its rows, or what the ranks have"
                        + " cannot be put together: use TENSOR mode for this network",
                what,
                shape,
                pass.getRows(),
                pass.getGlobalRows());
        NDArray mine = pass.countedRows(own);
        long[] rows = rows(context, pass, mine);
        return context.getBatchMappings().gatherRows(mine, rows);
    }

    /** Returns how many rows each rank has. */
    private static long[] rows(ParallelContext context, ForwardPass pass, NDArray own) {
        Communicator group = context.getDataGroup();
        long[] rows = new long[group.getSize()];
        if (!pass.hasSpareRanks()) {
            long times = own.getShape().get(0) / pass.getRows(); // such as the words of a text
            Cut cut = pass.getBatchCut();
            Arrays.setAll(rows, rank -> times * cut.getRange(rank).length());
            return rows;
        }
        // a rank without a row does not know how many one becomes
        long[] mine = {own.getShape().get(0)};
        return GatheredNumbers.of(group, own.getManager(), mine, "the rows of the batch");
    }
}
