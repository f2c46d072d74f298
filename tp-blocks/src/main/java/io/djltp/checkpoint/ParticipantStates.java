package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.cut.ShardRange;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.StepParticipant;
import io.djltp.rank.StepParticipant.StateCut;
import io.djltp.rank.StepParticipants;
import io.djltp.torch.Autograd;
import io.djltp.training.TrainerState;

import java.io.IOException;
import java.util.ArrayList;
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

    private static final String AXIS = "axis";
    private static final String PARAMETER = "parameter";

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
     * @param values gets what {@link #restore} needs to know of them
     */
    List<TakenState.Tensor> tensors(NDManager manager, JsonObject values) {
        List<Map<String, Kept>> ranks = new ArrayList<>();
        for (int rank = 0; rank < state.getRanks().size(); rank++) {
            ranks.add(keptOf(rank, manager));
        }
        List<TakenState.Tensor> tensors = new ArrayList<>();
        ranks.get(0)
                .forEach(
                        (name, kept) -> {
                            JsonObject described = new JsonObject();
                            kept.arrays()
                                    .forEach(
                                            (kind, array) -> {
                                                StateCut cut = kept.cuts().get(kind);
                                                described.add(kind, describe(cut));
                                                tensors.add(tensor(ranks, name, kind, cut));
                                            });
                            values.add(name, described);
                        });
        return tensors;
    }

    private TakenState.Tensor tensor(
            List<Map<String, Kept>> ranks, String name, String kind, StateCut cut) {
        List<NDArray> arrays = new ArrayList<>();
        ranks.forEach(rank -> arrays.add(rank.get(name).arrays().get(kind)));
        DataType type = arrays.get(0).getDataType();
        Shape shape = arrays.get(0).getShape();
        if (!ranks.get(0).get(name).whole().contains(kind)) {
            return new TakenState.Tensor(
                    layout.ofParticipant(name + "/" + kind, type, shape, cut), arrays);
        }
        CutTensor tensor = layout.ofPlaces(name + "/" + kind, type, shape, cut);
        for (int rank = 0; rank < arrays.size(); rank++) {
            ShardRange own = layout.rangesOf(tensor, rank).get(0);
            NDIndex rows = new NDIndex().addAllDim(cut.axis()).addSliceDim(own.start(), own.end());
            arrays.set(rank, arrays.get(rank).get(rows).duplicate());
        }
        return new TakenState.Tensor(tensor, arrays);
    }

    private JsonObject describe(StateCut cut) {
        JsonObject described = new JsonObject();
        if (cut != null) {
            described.addProperty(AXIS, cut.axis());
            if (cut.parameter() != null) {
                described.addProperty(PARAMETER, names.apply(cut.parameter()));
            }
        }
        return described;
    }

    /**
     * Reads how the arrays of each participant are cut.
     *
     * @param checkpoint the checkpoint, which has their tensors
     * @param saved what {@link #tensors} has noted
     * @return the cuts by the names of arrays, {@code null} for one that is whole
     */
    Map<String, Map<String, StateCut>> read(Checkpoint checkpoint, SavedMembers saved)
            throws CheckpointException {
        Map<String, Map<String, StateCut>> participants = new TreeMap<>();
        for (String name : saved.names()) {
            Map<String, StateCut> cuts = new TreeMap<>();
            SavedMembers described = saved.object(name);
            for (String kind : described.names()) {
                CutTensor stored = checkpoint.getTensors().get(name + "/" + kind);
                StateCut cut = cutOf(described.object(kind));
                if (stored == null) {
                    throw described.wrong(kind, "has no tensor " + name + "/" + kind);
                } else if (!fits(stored, cut)) {
                    throw described.wrong(
                            kind, "does not describe its tensor, which is " + describe(stored));
                }
                cuts.put(kind, cut);
            }
            participants.put(name, cuts);
        }
        return participants;
    }

    private StateCut cutOf(SavedMembers described) throws CheckpointException {
        if (!described.has(AXIS)) {
            return null;
        }
        int axis = (int) described.whole(AXIS, 0, Byte.MAX_VALUE);
        if (!described.has(PARAMETER)) {
            return new StateCut(null, axis);
        }
        Parameter parameter = state.getParameters().byName(described.text(PARAMETER));
        if (parameter == null) {
            throw described.wrong(PARAMETER, "is of no parameter");
        }
        return new StateCut(parameter, axis);
    }

    private static String describe(CutTensor stored) {
        return stored.shape() + (stored.isWhole() ? " whole" : " cut along axis " + stored.axis());
    }

    /**
     * Returns whether a tensor is cut as it is said: as a parameter is, or with a row of each place
     * that the ranks had, which may be others than there are parts: a checkpoint can be resharded.
     */
    private boolean fits(CutTensor stored, StateCut cut) {
        if (cut == null) {
            return stored.isWhole();
        } else if (cut.axis() >= stored.shape().dimension()) {
            return false;
        } else if (cut.parameter() == null) {
            return stored.axis() == cut.axis() && stored.shape().get(cut.axis()) > 0;
        }
        CutTensor own = layout.ofParticipant(stored.name(), stored.type(), stored.shape(), cut);
        return own.shape().equals(stored.shape());
    }

    /**
     * Gives the participants of a rank what a checkpoint has of them: those that there are, and
     * those to come when they do.
     *
     * @param rank the place of the rank among those of this process
     * @param checkpoint the checkpoint
     * @param saved what {@link #read} has returned
     */
    void restore(int rank, Checkpoint checkpoint, Map<String, Map<String, StateCut>> saved)
            throws IOException {
        Map<String, Kept> kept = waiting.get(rank);
        kept.values().forEach(each -> each.arrays().values().forEach(NDArray::close));
        kept.clear();
        NDManager manager = state.getParameters().getStores().get(rank).getManager();
        for (Map.Entry<String, Map<String, StateCut>> participant : saved.entrySet()) {
            Kept one = new Kept();
            String name = participant.getKey();
            for (Map.Entry<String, StateCut> each : participant.getValue().entrySet()) {
                String kind = each.getKey();
                StateCut cut = each.getValue();
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
        return own.isWhole()
                ? checkpoint.read(own.name(), manager)
                : checkpoint.read(own.name(), own.axis(), layout.rangesOf(own, rank), manager);
    }
}
