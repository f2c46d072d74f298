package io.djltp.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.cut.Cut;
import io.djltp.loss.FusedHead;
import io.djltp.optimizer.LearningRates;
import io.djltp.optimizer.OptimizerSettings;
import io.djltp.optimizer.OptimizerState;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Autograd;
import io.djltp.torch.TensorView;
import io.djltp.update.WeightUpdate;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A rank's update of its shards and replicas. */
public final class RankUpdate implements AutoCloseable {

    private final ParallelParameters parameters;
    private final GradientGroups groups;
    private final List<OptimizerState> states = new ArrayList<>(); // of the ranks of this process
    private final TableUpdate tableUpdate;

    /**
     * Creates the update of a training, without state.
     *
     * @param parameters what the ranks hold
     * @param groups over which ranks gradients are summed
     * @param optimizer the settings of the optimizer
     * @param ranks the ranks
     */
    public RankUpdate(
            ParallelParameters parameters,
            GradientGroups groups,
            OptimizerSettings optimizer,
            int ranks) {
        this.parameters = parameters;
        this.groups = groups;
        tableUpdate = new TableUpdate(parameters, groups);
        for (int i = 0; i < ranks; i++) {
            states.add(new OptimizerState(optimizer));
        }
    }

    /**
     * Returns what the optimizer keeps of the parameters of a rank of this process.
     *
     * @param localIndex the place of the rank among those of this process
     * @return what the optimizer keeps of the parameters of a rank of this process
     */
    public OptimizerState getState(int localIndex) {
        return states.get(localIndex);
    }

    /**
     * Sums the gradients of data-parallel parameters, and updates one while others are summed. Uses
     * the gradients up.
     *
     * @param context the rank
     * @param updates what is done to each parameter that is trained, in the order of the block tree
     */
    public void run(ParallelContext context, Map<Parameter, LearningRates.Update> updates) {
        List<Summed> others = new ArrayList<>();
        Set<Parameter> withGradient = withoutHeadsAndTables(context, updates.keySet());
        parameters.getReplicas().sum(context, parameters, withGradient);
        try {
            for (Parameter parameter : withGradient) {
                others.add(new Summed(context, parameter));
            }
            // while the others are summed
            context.getFusedHeads().forEach(head -> updateFused(context, head, updates));
            context.getRowSparseTables()
                    .forEach(
                            table ->
                                    tableUpdate.run(
                                            context,
                                            table,
                                            begin(context, table.getParameter(), updates)));
            for (Summed each : others) {
                each.update(begin(context, each.parameter, updates));
            }
        } finally {
            others.forEach(Summed::close);
        }
    }

    private static Set<Parameter> withoutHeadsAndTables(
            ParallelContext context, Set<Parameter> updated) {
        Set<Parameter> others = new LinkedHashSet<>(updated);
        for (FusedHead head : context.getFusedHeads()) {
            others.remove(head.getWeight());
            others.remove(head.getBias());
        }
        context.getRowSparseTables().forEach(table -> others.remove(table.getParameter()));
        return others;
    }

    /** The gradient of a parameter while it is summed over the ranks. */
    private final class Summed implements AutoCloseable {

        private final Parameter parameter;
        private final NDArray value;
        private NDArray gradient; // or null: it is zero on this rank, and not summed
        private Work sum = Work.DONE;

        Summed(ParallelContext context, Parameter parameter) {
            this.parameter = parameter;
            value = value(context, parameter);
            gradient = Autograd.gradient(value);
            Communicator group = groups.of(context, parameter);
            if (group != null) {
                if (gradient == null) { // but other ranks may have one
                    gradient = value.getManager().zeros(value.getShape(), value.getDataType());
                }
                group.setIssuer("the gradient of " + parameters.nameOf(parameter));
                sum = group.allReduce(TensorView.of(gradient), ReduceOp.SUM);
            }
        }

        void update(WeightUpdate update) {
            sum.await();
            update.run(value, gradient);
            Autograd.dropGradient(value);
            close(); // its memory is free for what comes next
        }

        /** {@inheritDoc} */
        @Override
        public void close() {
            if (gradient != null) {
                gradient.close();
                gradient = null;
            }
        }
    }

    /** The head updates its weight itself; of the bias it has a gradient. */
    private void updateFused(
            ParallelContext context, FusedHead head, Map<Parameter, LearningRates.Update> updates) {
        WeightUpdate ofWeight = begin(context, head.getWeight(), updates);
        WeightUpdate ofBias = begin(context, head.getBias(), updates);
        NDArray biasGradient = null;
        if (head.hasGradient()) {
            biasGradient = head.update(ofWeight, ofBias != null);
        } else if (ofWeight != null && !head.isSampled()) {
            ofWeight.run(value(context, head.getWeight()), null);
            head.updatedWithoutGradient();
        }
        if (ofBias != null) {
            ofBias.run(value(context, head.getBias()), biasGradient);
        }
    }

    private NDArray value(ParallelContext context, Parameter parameter) {
        return parameters.getStore(context).getValue(parameter, context.getDevice(), true);
    }

    /** Returns the update of this step with its state, or null if a parameter is not trained. */
    private WeightUpdate begin(
            ParallelContext context,
            Parameter parameter,
            Map<Parameter, LearningRates.Update> updates) {
        LearningRates.Update step = updates.get(parameter);
        if (step == null) {
            return null;
        }
        WeightUpdate update =
                states.get(context.getLocalIndex())
                        .getUpdate(
                                parameters.nameOf(parameter),
                                made -> setRowsCut(made, context, parameter));
        update.begin(step.learningRate(), step.number());
        return update;
    }

    private void setRowsCut(WeightUpdate update, ParallelContext context, Parameter parameter) {
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        Shape whole = parameter.getArray().getShape();
        if (strategy != null && strategy.axis(whole) != 0) {
            Communicator group = context.getTensorGroup();
            Cut cut = strategy.cut(whole, group.getSize());
            update.setRowsCut(group, whole, strategy.axis(whole), cut);
        }
    }

    /** Frees the state of the optimizer. */
    @Override
    public void close() {
        states.forEach(OptimizerState::close);
    }
}
