package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;

import java.util.Arrays;
import java.util.List;

/**
 * What a table's gradient is made of: bags of row numbers, and the gradient of the sum of each.
 *
 * @param ids the rows of the bags, of one bag after the other, 0 for none
 * @param width the places of a bag
 * @param ofSums the gradient of the sums, [bags, features]
 */
record TableGradient(int[] ids, int width, NDArray ofSums) {

    /**
     * Returns what this rank's backward passes have left, one after the other, maybe nothing.
     *
     * @param pending what forward passes have made of the table
     * @param values the rank's replica of the table
     * @param scope the manager of the result
     */
    static TableGradient of(List<RowSparseTable.Bags> pending, NDArray values, NDManager scope) {
        NDList gradients = new NDList();
        int[] ids = {};
        int width = 0;
        for (RowSparseTable.Bags bags : pending) {
            NDArray gradient = bags.gradient();
            if (gradient == null) {
                continue; // a forward pass without a backward pass
            }
            gradient.attach(scope);
            gradients.add(gradient);
            int wider = Math.max(width, bags.width());
            int[] before = widened(ids, width, wider);
            int[] added = widened(bags.ids(), bags.width(), wider);
            ids = Arrays.copyOf(before, before.length + added.length);
            System.arraycopy(added, 0, ids, before.length, added.length);
            width = wider;
        }
        if (gradients.isEmpty()) {
            // other ranks may have something
            Shape none = new Shape(0, values.getShape().get(1));
            return new TableGradient(ids, width, scope.create(none, values.getDataType()));
        }
        NDArray all = gradients.size() == 1 ? gradients.head() : NDArrays.concat(gradients);
        return new TableGradient(ids, width, all);
    }

    /** Returns the same bags with more places. */
    private static int[] widened(int[] ids, int width, int wider) {
        if (width == wider || ids.length == 0) {
            return ids;
        }
        int bags = ids.length / width;
        int[] all = new int[bags * wider];
        for (int bag = 0; bag < bags; bag++) {
            System.arraycopy(ids, bag * width, all, bag * wider, width);
        }
        return all;
    }

    /**
     * Returns the bags of all ranks of a group.
     *
     * @param group the group
     * @param scope the manager of the result
     */
    TableGradient ofAllRanks(Communicator group, NDManager scope) {
        int[] sizes = {ids.length / Math.max(1, width), width};
        long[] pairs = new long[group.getSize()];
        Arrays.fill(pairs, 2);
        int[] all = HostReads.ints(gather(group, scope.create(sizes), pairs, scope));
        long[] bags = new long[group.getSize()];
        int widest = 0;
        for (int rank = 0; rank < bags.length; rank++) {
            bags[rank] = all[2 * rank];
            widest = Math.max(widest, all[2 * rank + 1]);
        }
        if (widest == 0) {
            return this; // no rank has anything
        }
        NDArray mine = scope.create(widened(ids, width, widest));
        int[] allIds = HostReads.ints(gather(group, mine, times(bags, widest), scope));
        long features = ofSums.getShape().get(1);
        NDArray sums = TensorView.of(ofSums).isContiguous() ? ofSums : ofSums.duplicate();
        NDArray allSums = gather(group, sums, times(bags, features), scope);
        return new TableGradient(allIds, widest, allSums.reshape(-1, features));
    }

    private static NDArray gather(Communicator group, NDArray own, long[] counts, NDManager scope) {
        DataType type = own.getDataType();
        NDArray all = scope.create(new Shape(Arrays.stream(counts).sum()), type);
        group.allGather(TensorView.of(own), TensorView.of(all), counts).await();
        return all;
    }

    private static long[] times(long[] counts, long length) {
        return Arrays.stream(counts).map(count -> count * length).toArray();
    }
}
