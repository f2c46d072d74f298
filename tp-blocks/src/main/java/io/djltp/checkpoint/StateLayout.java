package io.djltp.checkpoint;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.checkpoint.store.CutTensor;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.optimizer.StateKind;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.rank.StepParticipant.StateCut;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.training.TrainerState;

import java.util.ArrayList;
import java.util.List;

/**
 * How the parameters of a trainer, and what is kept of them, lie on its ranks: which ranges of
 * which axis the parts of a checkpoint have, one for each place of the tensor group.
 */
final class StateLayout {

    private final RankPool ranks;
    private final ParallelParameters parameters;

    StateLayout(TrainerState state) {
        ranks = state.getRanks();
        parameters = state.getParameters();
    }

    /** Returns the number of parts. */
    int parts() {
        return ranks.getContext(0).getTensorGroup().getSize();
    }

    /** Returns the number of ranks of this process. */
    int ranks() {
        return ranks.size();
    }

    /** Returns the part that a rank of this process has. */
    int partOf(int localRank) {
        return ranks.getContext(localRank).getTensorGroup().getRank();
    }

    /** Returns whether a rank of this process writes its part: no earlier rank has the same. */
    boolean isWriter(int localRank) {
        ParallelContext context = ranks.getContext(localRank);
        return context.getMesh().getFirstReplica(context.getRank()) == context.getRank();
    }

    /** Describes a parameter. */
    CutTensor ofWeight(Parameter parameter) {
        DataType type = parameter.getArray().getDataType();
        return ofElements(parameters.nameOf(parameter), type, parameter);
    }

    /**
     * Describes what the optimizer keeps of a parameter: a number for each element, in the
     * parameter's shape, or one for each row, which is on all ranks if rows are cut.
     */
    CutTensor ofState(Parameter parameter, StateKind kind, DataType type) {
        String name = nameOf(parameter, kind);
        if (!kind.ofRows()) {
            return ofElements(name, type, parameter);
        }
        Shape shape = shapeOf(parameter);
        Shape rows = new Shape(shape.dimension() == 0 ? 1 : shape.get(0));
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        return strategy == null || strategy.axis(shape) != 0
                ? CutTensor.whole(name, type, rows)
                : new CutTensor(name, type, rows, 0, cut(strategy, shape));
    }

    /**
     * Returns what an array of the optimizer's state is called: {@code w/mean}, or {@code w//mean}
     * where there is a parameter w/mean.
     */
    String nameOf(Parameter parameter, StateKind kind) {
        String between = "/";
        while (parameters.byName(parameters.nameOf(parameter) + between + kind.name()) != null) {
            between += "/";
        }
        return parameters.nameOf(parameter) + between + kind.name();
    }

    private CutTensor ofElements(String name, DataType type, Parameter parameter) {
        Shape shape = shapeOf(parameter);
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        return strategy == null
                ? CutTensor.whole(name, type, shape)
                : new CutTensor(name, type, shape, strategy.axis(shape), cut(strategy, shape));
    }

    /** Its array knows, whatever it was declared as. */
    private static Shape shapeOf(Parameter parameter) {
        return parameter.getArray().getShape();
    }

    private Cut cut(ShardingStrategy strategy, Shape shape) {
        return strategy.cut(shape, parts());
    }

    /**
     * Describes an array of a participant.
     *
     * @param name the name
     * @param type the data type
     * @param shape the shape of the whole, or of what a rank has
     * @param stateCut how it is cut, or {@code null}
     */
    CutTensor ofParticipant(String name, DataType type, Shape shape, StateCut stateCut) {
        Cut cut = stateCut == null ? null : cutOf(stateCut);
        if (cut == null) {
            return CutTensor.whole(name, type, shape);
        }
        long[] whole = shape.getShape().clone();
        whole[stateCut.axis()] = cut.getLength();
        return new CutTensor(name, type, new Shape(whole), stateCut.axis(), cut);
    }

    /**
     * Describes the rows that as many places as a checkpoint's run had have each kept one of: as
     * they lie in the parts of this run, some of which may have none.
     */
    CutTensor ofPlaces(String name, DataType type, Shape shape, StateCut stateCut) {
        Cut cut = Cut.balanced(shape.get(stateCut.axis()), parts());
        return new CutTensor(name, type, shape, stateCut.axis(), cut);
    }

    /** Returns the cut of an array of a participant, or null if every rank has the whole. */
    private Cut cutOf(StateCut stateCut) {
        Parameter parameter = stateCut.parameter();
        if (parameter == null) {
            return Cut.balanced(parts(), parts());
        }
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        return strategy == null ? null : cut(strategy, shapeOf(parameter));
    }

    /** Returns the ranges that a rank of this process has of a tensor, {@code null} if all. */
    List<ShardRange> rangesOf(CutTensor tensor, int localRank) {
        return tensor.isWhole() ? null : tensor.cut().getRanges(partOf(localRank));
    }

    /** Returns the parts that this process writes. */
    List<Integer> ownParts() {
        List<Integer> own = new ArrayList<>();
        for (int i = 0; i < ranks.size(); i++) {
            if (isWriter(i)) {
                own.add(partOf(i));
            }
        }
        return own;
    }
}
