package io.djltp.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.nn.RowSparseTable;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.TensorView;
import io.djltp.update.BagIndex;
import io.djltp.update.EmbeddingBags;
import io.djltp.update.WeightUpdate;

import java.util.Arrays;

/**
 * A rank's update of the rows of a table that a step has used. All ranks update their replicas
 * alike: from the gradients of the sums of the whole batch, which are far smaller than the table.
 */
final class TableUpdate {

    private final ParallelParameters parameters;
    private final GradientGroups groups;

    TableUpdate(ParallelParameters parameters, GradientGroups groups) {
        this.parameters = parameters;
        this.groups = groups;
    }

    /** Bags and the gradient of their sums, [bags, features]. */
    private record Gradient(int[] ids, int width, NDArray ofSums) {}

    /**
     * Updates a table, and uses its gradients up.
     *
     * @param context the rank
     * @param table the table
     * @param update the update of this step, or {@code null} if the table is frozen
     */
    void run(ParallelContext context, RowSparseTable table, WeightUpdate update) {
        Parameter parameter = table.getParameter();
        NDArray values = parameters.getStore(context).getValue(parameter, null, true);
        try (NDManager scope = values.getManager().newSubManager()) {
            if (update == null) {
                return;
            }
            Gradient gradient = own(table, values, scope);
            Communicator group = groups.of(context, parameter);
            if (group != null) {
                gradient = ofAllRanks(group, gradient, parameter, scope);
            }
            long rows = values.getShape().get(0);
            BagIndex index = BagIndex.of(gradient.ids, gradient.width, rows);
            EmbeddingBags.update(values, index, gradient.ofSums, update);
        } finally {
            table.clear();
        }
    }

    /** Returns what this rank's backward passes have left, one after the other, maybe nothing. */
    private static Gradient own(RowSparseTable table, NDArray values, NDManager scope) {
        NDList gradients = new NDList();
        int[] ids = {};
        int width = 0;
        for (RowSparseTable.Bags bags : table.getPending()) {
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
            return new Gradient(ids, width, scope.create(none, values.getDataType()));
        }
        NDArray all = gradients.size() == 1 ? gradients.head() : NDArrays.concat(gradients);
        return new Gradient(ids, width, all);
    }

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

    private Gradient ofAllRanks(
            Communicator group, Gradient own, Parameter parameter, NDManager scope) {
        group.setIssuer("the gradient of " + parameters.nameOf(parameter));
        int[] sizes = {own.ids.length / Math.max(1, own.width), own.width};
        long[] pairs = new long[group.getSize()];
        Arrays.fill(pairs, 2);
        int[] all = gather(group, scope.create(sizes), pairs, scope).toIntArray();
        long[] bags = new long[group.getSize()];
        int width = 0;
        for (int rank = 0; rank < bags.length; rank++) {
            bags[rank] = all[2 * rank];
            width = Math.max(width, all[2 * rank + 1]);
        }
        if (width == 0) {
            return own; // no rank has anything
        }
        NDArray ids = scope.create(widened(own.ids, own.width, width));
        int[] allIds = gather(group, ids, times(bags, width), scope).toIntArray();
        long features = own.ofSums.getShape().get(1);
        NDArray mine = own.ofSums;
        mine = TensorView.of(mine).isContiguous() ? mine : mine.duplicate();
        NDArray sums = gather(group, mine, times(bags, features), scope);
        return new Gradient(allIds, width, sums.reshape(-1, features));
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
