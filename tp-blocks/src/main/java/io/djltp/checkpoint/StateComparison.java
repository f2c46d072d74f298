package io.djltp.checkpoint;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.optimizer.StateKind;
import io.djltp.training.TrainerState;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Whether a checkpoint is one of the same network and optimizer as a trainer's. */
final class StateComparison {

    private static final int LISTED = 20;
    private static final String PARAMETERS = "parameters";
    private static final String SHARED = "shared";
    private static final String OPTIMIZER = "optimizer";

    private final TrainerState state;
    private final StateLayout layout;
    private final List<StateKind> kinds;

    /**
     * Creates a comparison.
     *
     * @param state the trainer
     * @param layout how its parameters lie
     * @param kinds what its optimizer keeps
     */
    StateComparison(TrainerState state, StateLayout layout, List<StateKind> kinds) {
        this.state = state;
        this.layout = layout;
        this.kinds = kinds;
    }

    /**
     * Notes what is compared later, and the names of what blocks share.
     *
     * @param network the network
     * @param values gets them
     */
    void take(Block network, JsonObject values) {
        JsonArray names = new JsonArray();
        for (Parameter parameter : state.getParameters().getAll()) {
            names.add(state.getParameters().nameOf(parameter));
        }
        values.add(PARAMETERS, names);
        values.add(SHARED, shared(network));
        values.addProperty(OPTIMIZER, optimizer());
    }

    /** Returns the other names of parameters, each with the one that it has here. */
    private JsonObject shared(Block network) {
        JsonObject others = new JsonObject();
        for (Pair<String, Parameter> named : network.getParameters()) {
            String name = state.getParameters().nameOf(named.getValue());
            if (!name.equals(named.getKey())) {
                others.addProperty(named.getKey(), name);
            }
        }
        return others;
    }

    /** Returns the tensors of the parameters that were noted, by each of their names. */
    static Map<String, String> named(Checkpoint checkpoint, SavedMembers saved)
            throws CheckpointException {
        Map<String, String> shared = shared(saved);
        Map<String, String> tensors = new LinkedHashMap<>();
        for (String name : parameters(checkpoint, saved)) {
            shared.forEach( // the names of other blocks come before it in the network
                    (other, of) -> {
                        if (of.equals(name)) {
                            tensors.put(other, name);
                        }
                    });
            tensors.put(name, name);
        }
        return tensors;
    }

    /** Reads the names of the parameters, of which each has a tensor. */
    private static List<String> parameters(Checkpoint checkpoint, SavedMembers saved)
            throws CheckpointException {
        List<String> names = saved.texts(PARAMETERS);
        for (String name : names) {
            if (!checkpoint.getTensors().containsKey(name)) {
                throw saved.wrong(PARAMETERS, "has " + name + ", of which there is no tensor");
            }
        }
        return names;
    }

    /** Reads the other names of parameters, each with the one that it has there. */
    private static Map<String, String> shared(SavedMembers saved) throws CheckpointException {
        SavedMembers noted = saved.object(SHARED);
        List<String> parameters = saved.texts(PARAMETERS);
        Map<String, String> shared = new LinkedHashMap<>();
        for (String other : noted.names()) {
            String name = noted.text(other);
            if (!parameters.contains(name)) {
                throw noted.wrong(other, "is " + name + ", of which there is no parameter");
            }
            shared.put(other, name);
        }
        return shared;
    }

    /** Momentum or none: that too is another optimizer. */
    private String optimizer() {
        List<String> names = kinds.stream().map(StateKind::name).toList();
        return state.getOptimizer().getName() + (names.isEmpty() ? "" : " with " + names);
    }

    /**
     * Checks a checkpoint.
     *
     * @param checkpoint the checkpoint
     * @param saved the trainer's values in it
     * @return the names of its parameters
     * @throws IllegalArgumentException if it is of another network or optimizer, with a list of
     *     what differs
     */
    List<String> check(Checkpoint checkpoint, SavedMembers saved) throws CheckpointException {
        List<String> names = parameters(checkpoint, saved);
        Map<String, CutTensor> stored = new LinkedHashMap<>();
        names.forEach(name -> stored.put(name, checkpoint.getTensors().get(name)));
        shared(saved); // not needed here, but it is damaged if it is something else
        checkNetwork(checkpoint, stored);
        checkOptimizer(checkpoint, saved.text(OPTIMIZER));
        return names;
    }

    private void checkNetwork(Checkpoint checkpoint, Map<String, CutTensor> stored) {
        List<String> differences = new ArrayList<>();
        for (Parameter parameter : state.getParameters().getAll()) {
            CutTensor own = layout.ofWeight(parameter);
            CutTensor other = stored.remove(own.name());
            if (other == null) {
                differences.add(describe(own) + " is in the network only");
            } else if (!other.shape().equals(own.shape()) || other.type() != own.type()) {
                differences.add(describe(own) + " is " + describe(other) + " in the checkpoint");
            }
        }
        stored.values()
                .forEach(other -> differences.add(describe(other) + " is not in the network"));
        if (!differences.isEmpty()) {
            throw new IllegalArgumentException(
                    "The checkpoint "
                            + checkpoint.getPath()
                            + " is of another network: "
                            + list(differences));
        }
    }

    private void checkOptimizer(Checkpoint checkpoint, String optimizer) {
        if (!optimizer.equals(optimizer())) {
            throw new IllegalArgumentException(
                    "The checkpoint "
                            + checkpoint.getPath()
                            + " is of another optimizer, "
                            + optimizer
                            + ", and the trainer has "
                            + optimizer()
                            + ": give it the same one. To go on from the weights alone, load them"
                            + " from a saved model");
        }
    }

    /**
     * Returns what a checkpoint of the same network and optimizer has of the optimizer's state.
     *
     * @return the names of its tensors, by that of the parameter; no parameter that has none
     */
    Map<String, List<String>> ofOptimizer(Checkpoint checkpoint) throws CheckpointException {
        Map<String, List<String>> tensors = new LinkedHashMap<>();
        for (Parameter parameter : state.getParameters().getAll()) {
            List<String> names =
                    kinds.stream().map(kind -> layout.nameOf(parameter, kind)).toList();
            if (names.stream().anyMatch(checkpoint.getTensors()::containsKey)) {
                for (String name : names) {
                    checkpoint.getTensor(name); // of each kind, or of none
                }
                tensors.put(state.getParameters().nameOf(parameter), names);
            }
        }
        return tensors;
    }

    private static String describe(CutTensor tensor) {
        return tensor.name() + " " + tensor.shape() + " " + tensor.type();
    }

    private static String list(List<String> differences) {
        int more = differences.size() - LISTED;
        return String.join("; ", differences.subList(0, Math.min(LISTED, differences.size())))
                + (more > 0 ? "; and " + more + " more" : "")
                + ". Nothing has been changed";
    }
}
