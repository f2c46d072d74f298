package io.djltp.checkpoint;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.optimizer.StateKind;
import io.djltp.internal.parameters.BlockWalk;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.rank.StepParticipant.StateCut;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.training.TrainerState;

import org.jspecify.annotations.Nullable;

import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * The names and the placement of what a trainer has on its ranks: which ranges of which axis the
 * parts of a checkpoint have, one part for each place of the tensor group.
 */
final class StateLayout {

    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final Map<Block, String> paths = new IdentityHashMap<>();

    StateLayout(TrainerState state, Block network) {
        ranks = state.getRanks();
        parameters = state.getParameters();
        BlockWalk.of(network, (block, path, certain) -> paths.put(block, path));
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

    /** Returns the ranks that write the parts of this process: no earlier rank has the same. */
    Map<Integer, Integer> writers() {
        Map<Integer, Integer> writers = new TreeMap<>();
        for (int i = 0; i < ranks.size(); i++) {
            ParallelContext context = ranks.getContext(i);
            if (context.getMesh().getFirstReplica(context.getRank()) == context.getRank()) {
                writers.put(partOf(i), i);
            }
        }
        return writers;
    }

    /** Returns the name of a parameter or the path of a block. */
    String nameOf(Object part) {
        return part instanceof Parameter parameter
                ? parameters.nameOf(parameter)
                : String.valueOf(paths.get((Block) part));
    }

    /**
     * Returns what an array of the optimizer's state is called: {@code w/mean}, or {@code w//mean}
     * where there is a parameter w/mean.
     */
    String nameOf(Parameter parameter, StateKind kind) {
        String between = "/";
        while (parameters.byName(nameOf(parameter) + between + kind.name()) != null) {
            between += "/";
        }
        return nameOf(parameter) + between + kind.name();
    }

    /** Describes a parameter. */
    CutTensor ofWeight(Parameter parameter) {
        return ofElements(nameOf(parameter), parameter.getArray().getDataType(), parameter);
    }

    /**
     * Describes what the optimizer keeps of a parameter: a number for each element, in the
     * parameter's shape, or one for each row, which is on all ranks if rows are cut.
     */
    CutTensor ofState(Parameter parameter, StateKind kind, DataType type) {
        CutTensor elements = ofElements(nameOf(parameter, kind), type, parameter);
        if (!kind.ofRows()) {
            return elements;
        }
        Shape rows = new Shape(elements.shape().dimension() == 0 ? 1 : elements.shape().get(0));
        return elements.axis() == 0
                ? new CutTensor(elements.name(), type, rows, 0, elements.cut())
                : CutTensor.whole(elements.name(), type, rows);
    }

    private CutTensor ofElements(String name, DataType type, Parameter parameter) {
        Shape shape = parameter.getArray().getShape(); // whatever it was declared as
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        return strategy == null
                ? CutTensor.whole(name, type, shape)
                : new CutTensor(
                        name, type, shape, strategy.axis(shape), strategy.cut(shape, parts()));
    }

    /**
     * Describes an array of a participant.
     *
     * @param name the name
     * @param type the data type
     * @param shape the shape of the whole, or of what a rank has
     * @param stateCut how it is cut, or {@code null}
     */
    CutTensor ofParticipant(String name, DataType type, Shape shape, @Nullable StateCut stateCut) {
        if (stateCut == null) {
            return CutTensor.whole(name, type, shape);
        }
        Parameter parameter = stateCut.parameter();
        Cut cut = parameter == null ? Cut.balanced(parts(), parts()) : ofWeight(parameter).cut();
        return cut == null
                ? CutTensor.whole(name, type, shape)
                : ofCut(name, type, shape, stateCut.axis(), cut);
    }

    private static CutTensor ofCut(String name, DataType type, Shape shape, int axis, Cut cut) {
        long[] whole = shape.getShape().clone();
        whole[axis] = cut.getLength();
        return new CutTensor(name, type, new Shape(whole), axis, cut);
    }

    /**
     * Describes the rows that as many places as a checkpoint's run had have each kept one of: as
     * they are in the parts of this run, some of which may have none.
     */
    CutTensor ofPlaces(String name, DataType type, Shape shape, int axis) {
        return ofCut(name, type, shape, axis, Cut.balanced(shape.get(axis), parts()));
    }

    /** Returns the ranges that a rank of this process has of a tensor, {@code null} if all. */
    @Nullable List<ShardRange> rangesOf(CutTensor tensor, int localRank) {
        Cut cut = tensor.cut();
        return cut == null ? null : cut.getRanges(partOf(localRank));
    }
}
