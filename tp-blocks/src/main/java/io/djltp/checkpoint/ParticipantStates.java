package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.cut.ShardRange;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.StepParticipant;
import io.djltp.internal.rank.StepParticipant.StateCut;
import io.djltp.internal.rank.StepParticipants;
import io.djltp.internal.torch.Autograd;
import io.djltp.training.TrainerState;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/**
 * What the participants of steps keep on the ranks, whatever their classes are.
 *
 * <p>A participant is made in the first forward pass of its block. What is restored for one that is
 * not there yet waits for it, and is saved again if it does not come.
 */
final class ParticipantStates {

    private final TrainerState state;
    private final StateLayout layout;
    private final List<Map<String, Kept>> waiting = new ArrayList<>(); // by rank of this process

    /**
     * What a participant keeps on a rank.
     *
     * @param arrays its arrays by name
     * @param cuts how those are cut that are
     * @param whole the names of those that have the rows of all places before, of another number
     */
    private record Kept(
            Map<String, NDArray> arrays, Map<String, StateCut> cuts, Set<String> whole) {

        /** Returns views that stay when the arrays are closed. */
        Kept seenBy(NDManager manager) {
            Map<String, NDArray> views = new TreeMap<>();
            arrays.forEach((name, array) -> views.put(name, Autograd.detach(array, manager)));
            return new Kept(views, cuts, whole);
        }

        void close() {
            arrays.values().forEach(NDArray::close);
        }
    }

    /**
     * How an array is cut, in the words of a checkpoint: not at all if there is no axis.
     *
     * @param axis the axis, or {@code null}
     * @param parameter the name of the parameter that is cut alike; {@code null} if each place has
     *     a row
     */
    record SavedCut(@Nullable Integer axis, @Nullable String parameter) {}

    ParticipantStates(TrainerState state, StateLayout layout) {
        this.state = state;
        this.layout = layout;
        for (int i = 0; i < layout.ranks(); i++) {
            int rank = i;
            waiting.add(new TreeMap<>());
            context(rank).getParticipants().setOnNew((key, made) -> begin(rank, key, made));
        }
    }

    private ParallelContext context(int rank) {
        return state.getRanks().getContext(rank);
    }

    private void begin(int rank, StepParticipants.Key key, StepParticipant made) {
        if (waiting.get(rank).isEmpty()) {
            return;
        }
        String name = key.name(layout::nameOf);
        Kept kept = waiting.get(rank).get(name);
        if (kept != null) {
            made.setState(kept.arrays());
            waiting.get(rank).remove(name);
            kept.close();
        }
    }

    /** Returns what the participants of a rank keep, by their names. */
    private Map<String, Kept> keptOf(int rank, NDManager manager) {
        Map<String, Kept> all = new TreeMap<>();
        waiting.get(rank).forEach((name, each) -> all.put(name, each.seenBy(manager)));
        context(rank)
                .getParticipants()
                .asMap()
                .forEach(
                        (key, each) -> {
                            Map<String, NDArray> arrays = new TreeMap<>(each.getState(manager));
                            if (!arrays.isEmpty()) {
                                Kept kept = new Kept(arrays, each.getStateCuts(), Set.of());
                                all.put(key.name(layout::nameOf), kept);
                            }
                        });
        return all;
    }

    /**
     * Returns the tensors.
     *
     * @param manager the manager of the views and copies
     * @param values gets how the arrays of each participant are cut
     */
    List<TrainingState.Tensor> tensors(
            NDManager manager, Map<String, Map<String, SavedCut>> values) {
        List<Map<String, Kept>> ranks = new ArrayList<>();
        for (int rank = 0; rank < layout.ranks(); rank++) {
            ranks.add(keptOf(rank, manager));
        }
        List<TrainingState.Tensor> tensors = new ArrayList<>();
        ranks.get(0)
                .forEach(
                        (name, kept) -> {
                            Map<String, SavedCut> cuts = new TreeMap<>();
                            for (String kind : kept.arrays().keySet()) {
                                cuts.put(kind, describe(kept.cuts().get(kind)));
                                tensors.add(
                                        tensor(
                                                name + "/" + kind,
                                                kind,
                                                ranks.stream().map(all -> all.get(name)).toList()));
                            }
                            values.put(name, cuts);
                        });
        return tensors;
    }

    private TrainingState.Tensor tensor(String name, String kind, List<Kept> ranks) {
        List<NDArray> arrays = new ArrayList<>();
        ranks.forEach(kept -> arrays.add(kept.arrays().get(kind)));
        DataType type = arrays.get(0).getDataType();
        Shape shape = arrays.get(0).getShape();
        StateCut cut = ranks.get(0).cuts().get(kind);
        if (cut == null || !ranks.get(0).whole().contains(kind)) {
            return new TrainingState.Tensor(layout.ofParticipant(name, type, shape, cut), arrays);
        }
        CutTensor tensor = layout.ofPlaces(name, type, shape, cut.axis());
        for (int rank = 0; rank < arrays.size(); rank++) {
            ShardRange own = Objects.requireNonNull(layout.rangesOf(tensor, rank)).get(0);
            NDIndex rows = new NDIndex().addAllDim(cut.axis()).addSliceDim(own.start(), own.end());
            arrays.set(rank, arrays.get(rank).get(rows).duplicate());
        }
        return new TrainingState.Tensor(tensor, arrays);
    }

    private SavedCut describe(@Nullable StateCut cut) {
        if (cut == null) {
            return new SavedCut(null, null);
        }
        Parameter parameter = cut.parameter();
        return new SavedCut(cut.axis(), parameter == null ? null : layout.nameOf(parameter));
    }

    /**
     * Gives the participants of a rank what a checkpoint has of them: those that there are, and
     * those to come when they do.
     *
     * @param rank the place of the rank among those of this process
     * @param checkpoint the checkpoint
     * @param saved what {@link #tensors} has noted
     */
    void restore(int rank, Checkpoint checkpoint, Map<String, Map<String, SavedCut>> saved)
            throws IOException {
        Map<String, Kept> kept = waiting.get(rank);
        kept.values().forEach(Kept::close);
        kept.clear();
        for (Map.Entry<String, Map<String, SavedCut>> each : saved.entrySet()) {
            kept.put(each.getKey(), read(rank, checkpoint, each.getKey(), each.getValue()));
        }
        context(rank).getParticipants().asMap().forEach((key, made) -> begin(rank, key, made));
    }

    private Kept read(
            int rank, Checkpoint checkpoint, String participant, Map<String, SavedCut> cuts)
            throws IOException {
        NDManager manager = state.getParameters().getStores().get(rank).getManager();
        Kept kept = new Kept(new TreeMap<>(), new TreeMap<>(), new TreeSet<>());
        for (Map.Entry<String, SavedCut> each : cuts.entrySet()) {
            String kind = each.getKey();
            SavedCut saved = each.getValue();
            CutTensor tensor = checkpoint.getTensor(participant + "/" + kind);
            if (saved.axis() != null) {
                String ofWeight = saved.parameter();
                boolean ofPlaces = ofWeight == null;
                Parameter parameter =
                        ofWeight == null ? null : state.getParameters().byName(ofWeight);
                StateCut cut = new StateCut(parameter, saved.axis());
                kept.cuts().put(kind, cut);
                if (ofPlaces && tensor.shape().get(cut.axis()) != layout.parts()) {
                    kept.whole().add(kind);
                } else {
                    tensor =
                            layout.ofParticipant(tensor.name(), tensor.type(), tensor.shape(), cut);
                }
            }
            boolean all = tensor.isWhole() || kept.whole().contains(kind);
            List<ShardRange> ranges = all ? null : layout.rangesOf(tensor, rank);
            kept.arrays().put(kind, checkpoint.read(tensor.name(), tensor.axis(), ranges, manager));
        }
        return kept;
    }
}
