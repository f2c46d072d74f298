package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Parameter;

import io.djltp.checkpoint.store.CutTensor;
import io.djltp.collective.GatheredNumbers;
import io.djltp.optimizer.OptimizerState;
import io.djltp.optimizer.StateKind;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;
import io.djltp.training.TrainerState;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/**
 * What the optimizer keeps of each parameter, as tensors of the parameter's shape (momentum, means)
 * or with one number for each of its rows.
 *
 * <p>A rank has no state of a weight for which it has never had a gradient, such as a table of
 * which no row was used; another rank may have. So the ranks first agree on what there is, and who
 * has none makes one of zeros, which stands for the same.
 */
final class OptimizerArrays {

    private static final DataType[] TYPES = {null, DataType.FLOAT32, DataType.FLOAT64};

    private final TrainerState state;
    private final StateLayout layout;
    private final List<StateKind> kinds;

    OptimizerArrays(TrainerState state, StateLayout layout) {
        this.state = state;
        this.layout = layout;
        kinds = StateKind.of(state.getOptimizer());
    }

    /** Returns what the optimizer keeps of a weight. */
    List<StateKind> kinds() {
        return kinds;
    }

    /**
     * Returns the tensors. All processes call it: one all-gather.
     *
     * @param manager the manager of the views
     */
    List<TakenState.Tensor> tensors(NDManager manager) {
        List<TakenState.Tensor> tensors = new ArrayList<>();
        if (kinds.isEmpty()) {
            return tensors;
        }
        ParallelParameters parameters = state.getParameters();
        List<Parameter> all = parameters.getAll();
        int[] types = state.getRanks().run(context -> agree(context, all)).get(0);
        for (int i = 0; i < types.length; i++) {
            if (types[i] > 0) {
                String name = parameters.nameOf(all.get(i));
                for (StateKind kind : kinds) {
                    CutTensor tensor = layout.ofState(all.get(i), kind, TYPES[types[i]]);
                    tensors.add(new TakenState.Tensor(tensor, views(name, kind, tensor, manager)));
                }
            }
        }
        return tensors;
    }

    /** Returns the type of the state of each parameter, 0 where no rank has one. */
    private int[] agree(ParallelContext context, List<Parameter> all) {
        ParallelParameters parameters = state.getParameters();
        OptimizerState held = state.getOptimizerState(context.getLocalIndex());
        NDManager manager = parameters.getStore(context).getManager();
        long[] own = new long[all.size()];
        Arrays.setAll(own, i -> typeOf(held, parameters.nameOf(all.get(i)), manager));
        long[] ofAll =
                GatheredNumbers.of(context.getWorld(), manager, own, "the state of the optimizer");
        int[] types = new int[own.length];
        for (int i = 0; i < ofAll.length; i++) {
            types[i % own.length] = Math.max(types[i % own.length], (int) ofAll[i]);
        }
        for (int i = 0; i < own.length; i++) {
            if (own[i] == 0 && types[i] > 0) {
                held.prepare(parameters.nameOf(all.get(i)), TYPES[types[i]]);
            }
        }
        return types;
    }

    private static int typeOf(OptimizerState held, String name, NDManager manager) {
        try (NDManager scope = manager.newSubManager()) {
            Map<String, NDArray> arrays = held.get(name, scope);
            return arrays.isEmpty()
                    ? 0
                    : Arrays.asList(TYPES).indexOf(arrays.values().iterator().next().getDataType());
        }
    }

    /** The optimizer keeps [rows, elements of a row] of any weight. */
    private List<NDArray> views(String name, StateKind kind, CutTensor tensor, NDManager manager) {
        List<NDArray> views = new ArrayList<>();
        for (int rank = 0; rank < state.getRanks().size(); rank++) {
            NDArray view = state.getOptimizerState(rank).get(name, manager).get(kind.name());
            views.add(view.reshape(tensor.getShardShape(layout.partOf(rank))));
        }
        return views;
    }
}
