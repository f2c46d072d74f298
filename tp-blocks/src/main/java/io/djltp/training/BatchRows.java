package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;

import io.djltp.layout.ForwardPass;
import io.djltp.rank.DataRows;
import io.djltp.rank.ParallelContext;

/** Puts the rows of the ranks' outputs together on every rank, as a part of the graph. */
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
            boolean cut = part.getRegion(i).isRowsCut();
            whole.add(cut ? gather(context, part, i, array, scope) : part.getPlaced(i));
        }
        return whole;
    }

    private static NDArray gather(
            ParallelContext context, RankOutput part, int index, NDArray own, NDManager scope) {
        ForwardPass pass = part.getPass();
        boolean truth = own.getDataType() == DataType.BOOLEAN;
        NDArray numbers = truth ? own.toType(DataType.INT32, false) : own;
        NDArray whole = DataRows.gather(context, numbers, "Output " + index + " of the network");
        whole.attach(scope);
        whole = truth ? whole.toType(DataType.BOOLEAN, false) : whole;
        return pass.gathered(whole, part.getPlaced(index));
    }
}
