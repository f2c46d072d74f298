package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.GatheredNumbers;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;

import java.util.Arrays;
import java.util.List;

/** Puts rows together that lie on several ranks, in one process or in many. */
@SuppressWarnings("try") // a scope is used by being open
final class RowGather {

    private RowGather() {}

    /**
     * Gathers the rows of all ranks.
     *
     * @param ranks the ranks of this process
     * @param rows the rows of each of them, which may differ in number
     * @param manager the manager of the result
     * @return the rows of all ranks of the job, in their order
     */
    static NDArray of(RankPool ranks, List<NDArray> rows, NDManager manager) {
        if (!ranks.isDistributed()) {
            return put(ranks, rows, manager);
        }
        List<NDArray> whole =
                ranks.run(context -> gather(context, rows.get(context.getLocalIndex()), manager));
        whole.subList(1, whole.size()).forEach(NDArray::close);
        return whole.get(0);
    }

    /** Puts rows of one process together. Ranks of a tensor-parallel group have the same. */
    private static NDArray put(RankPool ranks, List<NDArray> rows, NDManager manager) {
        boolean overlaid = ranks.getContext(0).getMesh().isOverlaid(); // all have rows of their own
        try (NDManager scope = manager.newSubManager()) {
            NDList parts = new NDList();
            for (int i = 0; i < rows.size(); i++) {
                if (overlaid || ranks.getContext(i).getTensorGroup().getRank() == 0) {
                    NDArray own = Autograd.detach(rows.get(i), scope);
                    parts.add(own.toDevice(manager.getDevice(), false));
                }
            }
            NDArray whole = NDArrays.concat(parts);
            whole = parts.size() == 1 ? whole.duplicate() : whole;
            whole.attach(manager);
            return whole;
        }
    }

    private static NDArray gather(ParallelContext context, NDArray rows, NDManager manager) {
        Communicator group = context.getDataGroup();
        try (Autograd.GradMode mode = Autograd.gradMode(false);
                NDManager scope = manager.newSubManager(context.getDevice())) {
            NDArray own = Autograd.detach(rows, scope);
            if (own.getDataType() == DataType.BOOLEAN) {
                own = own.toType(DataType.INT32, false);
            }
            own = TensorView.of(own).isContiguous() ? own : own.duplicate();
            long[] mine = {own.getShape().get(0)};
            long[] counts = GatheredNumbers.of(group, scope, mine, "the gathering of the output");
            long rowSize = own.getShape().slice(1).size();
            long[] shares = Arrays.stream(counts).map(count -> count * rowSize).toArray();
            Shape shape = new Shape(Arrays.stream(counts).sum()).addAll(own.getShape().slice(1));
            NDArray whole = scope.create(shape, own.getDataType());
            group.allGather(TensorView.of(own), TensorView.of(whole), shares).await();
            if (rows.getDataType() == DataType.BOOLEAN) {
                whole = whole.toType(DataType.BOOLEAN, false);
            }
            whole.attach(manager);
            return whole;
        }
    }
}
