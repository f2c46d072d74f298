package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.bridge.TensorView;
import io.djltp.bridge.WeightUpdate;
import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.mesh.FusedHead;
import io.djltp.mesh.ParallelContext;
import io.djltp.sharding.RankParameterStore;

import java.util.ArrayList;
import java.util.List;

/** A rank's update of its shards and replicas. */
final class RankUpdate {

    private final ParallelParameters parameters;
    private final GradientGroups groups;
    private final Optimizer optimizer;
    private final FusedOptimizer fusedOptimizer;
    private final TableUpdate tableUpdate;

    RankUpdate(ParallelParameters parameters, GradientGroups groups, Optimizer optimizer) {
        this.parameters = parameters;
        this.groups = groups;
        this.optimizer = optimizer;
        fusedOptimizer = new FusedOptimizer(optimizer);
        tableUpdate = new TableUpdate(parameters, groups, fusedOptimizer);
    }

    /** Returns whether rows of tables that were not used need no update. */
    boolean isRowSparse() {
        return fusedOptimizer.isRowSparse();
    }

    /**
     * Sums the gradients of data-parallel parameters, and updates one while others are summed.
     *
     * @param context the rank
     * @param trained the parameters
     */
    void run(ParallelContext context, List<Parameter> trained) {
        RankParameterStore store = parameters.getStore(context);
        List<Parameter> updated = new ArrayList<>(trained);
        for (FusedHead head : context.getFusedHeads()) {
            updated.remove(head.getWeight());
            updated.remove(head.getBias());
        }
        context.getRowSparseTables().forEach(table -> updated.remove(table.getParameter()));
        List<NDArray> gradients = new ArrayList<>(updated.size());
        List<Work> sums = new ArrayList<>(updated.size());
        try {
            for (Parameter parameter : updated) {
                NDArray value = store.getValue(parameter, context.getDevice(), true);
                NDArray gradient = value.getGradient();
                gradients.add(gradient);
                sums.add(beginSum(context, parameter, gradient));
            }
            // while the others are summed
            context.getFusedHeads().forEach(head -> updateFused(context, head, trained));
            context.getRowSparseTables().forEach(table -> tableUpdate.run(context, table, trained));
            for (int i = 0; i < updated.size(); i++) {
                sums.get(i).await();
                update(context, updated.get(i), gradients.get(i));
            }
        } finally {
            gradients.forEach(NDArray::close);
        }
    }

    private void update(ParallelContext context, Parameter parameter, NDArray gradient) {
        optimizer.update(
                stateKey(parameter, context.getRank()),
                parameters.getStore(context).getValue(parameter, context.getDevice(), true),
                gradient);
    }

    /** The head updates its weight itself; of the bias it has a gradient. */
    private void updateFused(ParallelContext context, FusedHead head, List<Parameter> trained) {
        if (!head.hasGradient()) {
            return;
        }
        WeightUpdate update = null;
        if (trained.contains(head.getWeight())) {
            update = head.getUpdate(fusedOptimizer::newUpdate);
            fusedOptimizer.begin(update, stateKey(head.getWeight(), context.getRank()));
        }
        NDArray biasGradient = head.update(update, trained.contains(head.getBias()));
        if (biasGradient != null) {
            update(context, head.getBias(), biasGradient);
        }
    }

    private Work beginSum(ParallelContext context, Parameter parameter, NDArray gradient) {
        Communicator group = groups.of(context, parameter);
        if (group == null) {
            return Work.DONE;
        }
        group.setIssuer("the gradient of " + parameters.nameOf(parameter));
        return group.allReduce(TensorView.of(gradient), ReduceOp.SUM);
    }

    /** DJL's optimizers keep state and step counts by key: ranks on one device must not share. */
    static String stateKey(Parameter parameter, int rank) {
        return rank == 0 ? parameter.getId() : parameter.getId() + "@rank" + rank;
    }
}
