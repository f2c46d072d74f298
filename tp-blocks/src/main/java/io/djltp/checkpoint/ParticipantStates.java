package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.Autograd;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.StepParticipant;
import io.djltp.rank.StepParticipant.StateCut;
import io.djltp.rank.StepParticipants;
import io.djltp.training.TrainerState;

import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Function;

/**
 * What the participants of steps keep on the ranks, whatever their classes are.
 *
 * <p>A participant is made in the first forward pass of its block. What is restored for one that is
 * not there yet waits for it, and is saved again if it does not come.
 */
final class ParticipantStates {

    private final TrainerState state;
    private final StateLayout layout;
    private final Function<Object, String> names;
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

        Kept() {
            this(new TreeMap<>(), new TreeMap<>(), new TreeSet<>());
        }

        /** Returns views that stay when the arrays are closed. */
        Kept seenBy(NDManager manager) {
            Map<String, NDArray> views = new TreeMap<>();
            arrays.forEach((name, array) -> views.put(name, Autograd.detach(array, manager)));
            return new Kept(views, cuts, whole);
        }
    }

    /**
     * How an array is cut, in the words of a checkpoint: not at all if there is no axis.
     *
     * @param axis the axis, or {@code null}
     * @param parameter the name of the parameter that is cut alike; {@code null} if each place has
     *     a row
     */
    record SavedCut(Integer axis, String parameter) {}

    /**
     * Creates the states.
     *
     * @param state the trainer
     * @param layout how its parameters lie
     * @param names returns the name of a parameter or a block
     */
    ParticipantStates(TrainerState state, StateLayout layout, Function<Object, String> names) {
        this.state = state;
        this.layout = layout;
        this.names = names;
        for (int i = 0; i < state.getRanks().size(); i++) {
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
        Kept kept = waiting.get(rank).get(key.name(names));
        if (kept != null) {
            made.setState(kept.arrays());
            waiting.get(rank).remove(key.name(names));
            kept.arrays().values().forEach(NDArray::close);
        }
    }

    /** Returns what the participants of a rank keep, by their names. */
    private Map<String, Kept> keptOf(int rank, NDManager manager) {
        Map<String, Kept> kept = new TreeMap<>();
        waiting.get(rank).forEach((name, each) -> kept.put(name, each.seenBy(manager)));
        context(rank)
                .getParticipants()
                .asMap()
                .forEach(
                        (key, participant) -> {
                            Map<String, NDArray> arrays = participant.getState(manager);
                            if (!arrays.isEmpty()) {
                                kept.put(
                                        key.name(names),
                                        new Kept(
                                                new TreeMap<>(arrays),
                                                participant.getStateCuts(),
                                                Set.of()));
                            }
                        });
        return kept;
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
        for (int rank = 0; rank < state.getRanks().size(); rank++) {
            ranks.add(keptOf(rank, manager));
        }
        List<TrainingState.Tensor> tensors = new ArrayList<>();
        ranks.get(0)
                .forEach(
                        (name, kept) -> {
                            Map<String, SavedCut> described = new LinkedHashMap<>();
                            kept.arrays()
                                    .forEach(
                                            (kind, array) -> {
                                                StateCut cut = kept.cuts().get(kind);
                                                described.put(kind, describe(cut));
                                                tensors.add(tensor(ranks, name, kind, cut));
                                            });
                            values.put(name, described);
                        });
        return tensors;
    }

    private TrainingState.Tensor tensor(
            List<Map<String, Kept>> ranks, String name, String kind, StateCut cut) {
        List<NDArray> arrays = new ArrayList<>();
        ranks.forEach(rank -> arrays.add(rank.get(name).arrays().get(kind)));
        DataType type = arrays.get(0).getDataType();
        Shape shape = arrays.get(0).getShape();
        if (!ranks.get(0).get(name).whole().contains(kind)) {
            return new TrainingState.Tensor(
                    layout.ofParticipant(name + "/" + kind, type, shape, cut), arrays);
        }
        CutTensor tensor = layout.ofPlaces(name + "/" + kind, type, shape, cut);
        for (int rank = 0; rank < arrays.size(); rank++) {
            ShardRange own = layout.rangesOf(tensor, rank).get(0);
            NDIndex rows = new NDIndex().addAllDim(cut.axis()).addSliceDim(own.start(), own.end());
            arrays.set(rank, arrays.get(rank).get(rows).duplicate());
        }
        return new TrainingState.Tensor(tensor, arrays);
    }

    private SavedCut describe(StateCut cut) {
        if (cut == null) {
            return new SavedCut(null, null);
        }
        Parameter parameter = cut.parameter();
        return new SavedCut(cut.axis(), parameter == null ? null : names.apply(parameter));
    }

    private StateCut cutOf(SavedCut saved) {
        return saved.axis() == null
                ? null
                : new StateCut(
                        saved.parameter() == null
                                ? null
                                : state.getParameters().byName(saved.parameter()),
                        saved.axis());
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
        kept.values().forEach(each -> each.arrays().values().forEach(NDArray::close));
        kept.clear();
        NDManager manager = state.getParameters().getStores().get(rank).getManager();
        for (Map.Entry<String, Map<String, SavedCut>> participant : saved.entrySet()) {
            Kept one = new Kept();
            String name = participant.getKey();
            for (Map.Entry<String, SavedCut> each : participant.getValue().entrySet()) {
                String kind = each.getKey();
                StateCut cut = cutOf(each.getValue());
                CutTensor stored = checkpoint.getTensors().get(name + "/" + kind);
                boolean otherPlaces = ofOtherPlaces(stored, cut);
                one.arrays()
                        .put(
                                kind,
                                otherPlaces
                                        ? checkpoint.read(stored.name(), manager)
                                        : readOwn(rank, checkpoint, stored, cut, manager));
                if (otherPlaces) {
                    one.whole().add(kind);
                }
                if (cut != null) {
                    one.cuts().put(kind, cut);
                }
            }
            kept.put(name, one);
        }
        context(rank).getParticipants().asMap().forEach((key, made) -> begin(rank, key, made));
    }

    private boolean ofOtherPlaces(CutTensor stored, StateCut cut) {
        return cut != null
                && cut.parameter() == null
                && stored.shape().get(cut.axis()) != layout.parts();
    }

    private NDArray readOwn(
            int rank, Checkpoint checkpoint, CutTensor stored, StateCut cut, NDManager manager)
            throws IOException {
        CutTensor own = layout.ofParticipant(stored.name(), stored.type(), stored.shape(), cut);
        return checkpoint.read(own.name(), own.axis(), layout.rangesOf(own, rank), manager);
    }
}
