package io.djltp.internal.parameters;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.sharding.ShardingStrategy;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Which ranks hold the same part of a parameter that is cut: its gradient is summed over them.
 *
 * <p>Where an output feature is on several ranks, such as a key head that query heads of several
 * ranks share, each rank has the gradient of the uses that it computes, and the gradient of the
 * feature is their sum. That is so whatever follows: a gather takes a feature from the first rank
 * that has it, and leaves the others without a gradient. Replicas that begin alike stay alike.
 */
public final class ReplicaGroups {

    /** Where nothing is on several ranks. */
    static final ReplicaGroups NONE = new ReplicaGroups(List.of());

    private final List<Map<Parameter, List<SharedPart>>> shared; // by rank of this process

    private ReplicaGroups(List<Map<Parameter, List<SharedPart>>> shared) {
        this.shared = shared;
    }

    /** Forms the groups for all parameters. All processes call it. */
    static ReplicaGroups of(RankPool ranks, ParallelParameters parameters) {
        Map<Parameter, Cut> cuts = new LinkedHashMap<>();
        Set<List<Integer>> groups = new LinkedHashSet<>();
        int size = parameters.getShards().size();
        for (Parameter parameter : parameters.getCut()) {
            Shape shape = parameter.getArray().getShape();
            Cut cut = parameters.getShards().of(parameter).cut(shape, size);
            if (!cut.isPartition()) {
                cuts.put(parameter, cut);
                cut.getSegments().stream()
                        .filter(Segment::isReplicated)
                        .forEach(segment -> groups.add(segment.ranks()));
            }
        }
        if (cuts.isEmpty()) {
            return NONE;
        }
        return new ReplicaGroups(
                ranks.run(
                        context -> {
                            var communicators = connect(context, groups);
                            Map<Parameter, List<SharedPart>> parts = new LinkedHashMap<>();
                            cuts.forEach(
                                    (parameter, cut) -> {
                                        ShardingStrategy strategy =
                                                parameters.getShards().of(parameter);
                                        int axis = strategy.axis(parameter.getArray().getShape());
                                        int rank = context.getTensorGroup().getRank();
                                        parts.put(parameter, parts(cut, rank, axis, communicators));
                                    });
                            return parts;
                        }));
    }

    /**
     * Forms groups, those that have no rank in common at once.
     *
     * @return the communicators of the groups that the rank is in
     */
    private static Map<List<Integer>, Communicator> connect(
            ParallelContext context, Set<List<Integer>> groups) {
        Map<List<Integer>, Communicator> own = new LinkedHashMap<>();
        Communicator all = context.getTensorGroup();
        int rank = all.getRank();
        List<List<Integer>> left = new ArrayList<>(groups);
        while (!left.isEmpty()) {
            List<List<Integer>> round = new ArrayList<>();
            Set<Integer> taken = new HashSet<>();
            for (List<Integer> group : left) {
                if (group.stream().noneMatch(taken::contains)) {
                    taken.addAll(group);
                    round.add(group);
                }
            }
            left.removeAll(round);
            if (round.get(0).size() == all.getSize()) {
                own.put(round.get(0), all);
                continue;
            }
            int color = round.size() + rank; // a group of one
            for (int i = 0; i < round.size(); i++) {
                color = round.get(i).contains(rank) ? i : color;
            }
            all.setIssuer("the groups of replicas");
            Communicator part = context.splitTensorGroup(color);
            if (color < round.size()) {
                own.put(round.get(color), part);
            }
        }
        return own;
    }

    /** Returns what a rank shares of a parameter. All ranks go through the groups in one order. */
    private static List<SharedPart> parts(
            Cut cut, int rank, int axis, Map<List<Integer>, Communicator> communicators) {
        List<SharedPart> parts = new ArrayList<>();
        communicators.forEach(
                (group, communicator) ->
                        cut.getSegments().stream()
                                .filter(segment -> segment.ranks().equals(group))
                                .map(
                                        segment ->
                                                new ShardRange(
                                                        segment.getPlace(rank),
                                                        segment.range().length()))
                                .map(place -> new SharedPart(communicator, axis, place))
                                .forEach(parts::add));
        return parts;
    }

    /**
     * Returns whether some ranks have parts of their shards of a parameter in common.
     *
     * @param context a rank
     * @param parameter the parameter
     * @return whether two have, this one or others
     */
    public boolean has(ParallelContext context, Parameter parameter) {
        return !shared.isEmpty() && shared.get(context.getLocalIndex()).containsKey(parameter);
    }

    /**
     * Returns what of a parameter a rank has in common with others, whose gradient is to be summed.
     *
     * @param context the rank
     * @param parameter the parameter
     * @return the parts, group by group, and all ranks in one order of the groups
     */
    public List<SharedPart> getParts(ParallelContext context, Parameter parameter) {
        return shared.isEmpty()
                ? List.of()
                : shared.get(context.getLocalIndex()).getOrDefault(parameter, List.of());
    }
}
