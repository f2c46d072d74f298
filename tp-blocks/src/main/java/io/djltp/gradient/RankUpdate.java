package io.djltp.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.loss.FusedHead;
import io.djltp.optimizer.LearningRates;
import io.djltp.optimizer.OptimizerSettings;
import io.djltp.optimizer.OptimizerState;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.update.WeightUpdate;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A rank's update of its shards and replicas. */
public final class RankUpdate implements AutoCloseable {

    private final ParallelParameters parameters;
    private final List<OptimizerState> states = new ArrayList<>(); // of the ranks of this process
    private final List<GradientBuckets> buckets = new ArrayList<>(); // of these ranks
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
            RankPool ranks) {
        this.parameters = parameters;
        tableUpdate = new TableUpdate(parameters, groups);
        for (int i = 0; i < ranks.size(); i++) {
            RankWeights weights = new RankWeights(parameters, ranks.getContext(i));
            states.add(new OptimizerState(optimizer, weights));
            buckets.add(new GradientBuckets(parameters, groups, GradientBuckets.BYTES));
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
     * Sums the gradients of data-parallel parameters, and updates some while others are summed.
     * Uses the gradients up.
     *
     * @param context the rank
     * @param updates what is done to each parameter that is trained, in the order of the block tree
     */
    public void run(ParallelContext context, Map<Parameter, LearningRates.Update> updates) {
        GradientBuckets others = buckets.get(context.getLocalIndex());
        others.start(context, withoutHeadsAndTables(context, updates.keySet()));
        // while the others are summed
        context.getFusedHeads().forEach(head -> updateFused(context, head, updates));
        context.getRowSparseTables()
                .forEach(
                        table ->
                                tableUpdate.run(
                                        context,
                                        table,
                                        begin(context, table.getParameter(), updates)));
        others.finish(
                (parameter, value, gradient) ->
                        begin(context, parameter, updates).run(value, gradient));
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
        String name = parameters.nameOf(parameter);
        WeightUpdate update = states.get(context.getLocalIndex()).getUpdate(name);
        update.begin(step.learningRate(), step.number());
        return update;
    }

    /** Frees the state of the optimizer and the memory of summed gradients. */
    @Override
    public void close() {
        states.forEach(OptimizerState::close);
        buckets.forEach(GradientBuckets::close);
    }
}
