package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.layout.ForwardPass;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.TensorView;

import java.util.Arrays;

/** Puts the rows of the ranks together on every rank, as a part of the graph. */
final class BatchRows {

    private BatchRows() {}

    /**
     * Returns a rank's output with the rows of all ranks, where it has its own only.
     *
     * @param context the rank
     * @param part its output
     * @param scope the manager of the result
     * @return the output of the whole batch; what is cut by class is as it was, but for its rows
     */
    static NDList gather(ParallelContext context, RankOutput part, NDManager scope) {
        NDList whole = new NDList(part.arrays.size());
        for (int i = 0; i < part.arrays.size(); i++) {
            NDArray array = part.arrays.get(i);
            whole.add(
                    part.getRegion(i).isRowsCut() ? gather(context, part, i, array, scope) : array);
        }
        return whole;
    }

    private static NDArray gather(
            ParallelContext context, RankOutput part, int index, NDArray own, NDManager scope) {
        ForwardPass pass = part.getPass();
        Shape shape = own.getShape();
        if (shape.dimension() == 0 || shape.get(0) % Math.max(1, pass.getRows()) != 0) {
            throw new IllegalArgumentException(
                    "Output "
                            + index
                            + " of the network is "
                            + shape
                            + " on a rank with "
                            + pass.getRows()
                            + " of the "
                            + pass.getGlobalRows()
                            + " rows of the batch. Where the batch is cut over the ranks, axis 0 of"
                            + " an output must be its rows, or the ranks' outputs cannot be put"
                            + " together: use TENSOR mode for this network");
        }
        long[] rows = rows(context, pass, shape.get(0), scope);
        boolean truth = own.getDataType() == DataType.BOOLEAN;
        NDArray numbers = truth ? own.toType(DataType.INT32, false) : own;
        NDArray whole = context.getBatchMappings().gatherRows(numbers, rows);
        pass.gathered(whole, part.getRegion(index), part.getLayout(index), "Output " + index);
        whole.attach(scope);
        return truth ? whole.toType(DataType.BOOLEAN, false) : whole;
    }

    /** Returns how many rows of an output each rank has. */
    private static long[] rows(
            ParallelContext context, ForwardPass pass, long own, NDManager scope) {
        Communicator group = context.getDataGroup();
        long[] rows = new long[group.getSize()];
        if (!pass.hasSpareRanks()) {
            long times = own / pass.getRows(); // a row may have become several, such as words
            Arrays.setAll(
                    rows,
                    rank ->
                            times
                                    * Cut.balanced(pass.getGlobalRows(), rows.length)
                                            .getRange(rank)
                                            .length());
            return rows;
        }
        // a rank without a row does not know how many one becomes
        group.setIssuer("the rows of the output");
        long[] ones = new long[rows.length];
        Arrays.fill(ones, 1);
        try (NDArray mine = scope.create(new long[] {own});
                NDArray all = scope.create(new Shape(ones.length), DataType.INT64)) {
            group.allGather(TensorView.of(mine), TensorView.of(all), ones).await();
            return all.toLongArray();
        }
    }
}
