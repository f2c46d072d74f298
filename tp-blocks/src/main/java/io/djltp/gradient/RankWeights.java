package io.djltp.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.optimizer.OptimizerState;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.update.WeightUpdate;

import java.util.Comparator;

/** A rank's shards and replicas by the names of their parameters. */
final class RankWeights implements OptimizerState.Weights {

    private final ParallelParameters parameters;
    private final ParallelContext context;

    RankWeights(ParallelParameters parameters, ParallelContext context) {
        this.parameters = parameters;
        this.context = context;
    }

    /** {@inheritDoc} */
    @Override
    public NDArray get(String name) {
        Parameter parameter = parameters.byName(name);
        return parameter == null ? null : parameters.getStore(context).getHeld(parameter);
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(String name, WeightUpdate update) {
        Parameter parameter = parameters.byName(name);
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        Shape whole = parameter.getArray().getShape();
        if (strategy == null) {
            return;
        }
        Communicator group = context.getTensorGroup();
        Cut cut = strategy.cut(whole, group.getSize());
        if (strategy.axis(whole) != 0) {
            update.setRowsCut(group, whole, strategy.axis(whole), cut);
        } else if (!cut.isPartition()) {
            update.setStretches(stretches(cut, group.getRank()));
        }
    }

    /** Returns the lengths of what the same ranks hold, in the order in which a rank holds it. */
    private static long[] stretches(Cut cut, int rank) {
        return cut.getSegments().stream()
                .filter(segment -> segment.getPlace(rank) >= 0)
                .sorted(Comparator.comparingLong(segment -> segment.getPlace(rank)))
                .mapToLong(segment -> segment.range().length())
                .toArray();
    }
}
