package io.djltp.checkpoint;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.head.Margin;
import io.djltp.internal.torch.RandomDraws;
import io.djltp.nn.ClassificationHead;
import io.djltp.optimizer.LossScale;
import io.djltp.optimizer.StateKind;
import io.djltp.parameters.BlockWalk;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.RandomSeeds;
import io.djltp.training.TrainerState;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Function;

/**
 * What the index of a checkpoint says of a trainer, beside its tensors: what network and optimizer
 * it has, to be compared, and its numbers, to be put back. All of it is read and checked before
 * anything is changed.
 */
final class TrainerValues {

    private static final Logger logger = LoggerFactory.getLogger(TrainerValues.class);

    private static final int LISTED = 20; // names in a message

    private final TrainerState state;
    private final Block network;
    private final StateLayout layout;
    private final Agreement agreement;
    private final List<StateKind> kinds;
    private final Function<Object, String> names;

    /**
     * The values.
     *
     * @param parameters the names of the parameters
     * @param shared the other names of parameters that blocks share, each with the one that it has
     *     there
     * @param optimizer the class of the optimizer, and what it keeps
     * @param margins the margins of heads by the names of their weights
     * @param updates the number of the last update of each parameter that was updated
     * @param frozen the names of the parameters that are frozen
     * @param lossScale the scale, or {@code null} if the trainer had none
     * @param seeds what the next seeds follow from
     * @param participants how the arrays of each participant are cut, by their names
     * @param blocks the names of the arrays of each block
     * @param generators the states of libtorch's generators on the CPU, which DJL's own dropout,
     *     the shuffling of data and blocks of one's own draw from: of the first rank of each
     *     process
     */
    record Saved(
            List<String> parameters,
            Map<String, String> shared,
            String optimizer,
            Map<String, Margin> margins,
            Map<String, Integer> updates,
            List<String> frozen,
            @SavedValues.Optional LossScale.State lossScale,
            RandomSeeds.State seeds,
            Map<String, Map<String, ParticipantStates.SavedCut>> participants,
            Map<String, List<String>> blocks,
            Map<String, String> generators) {

        /** Returns the tensors of the parameters by each of their names. */
        Map<String, String> named() {
            Map<String, String> tensors = new LinkedHashMap<>();
            for (String name : parameters) {
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
    }

    /**
     * Creates the values of a trainer.
     *
     * @param state the trainer
     * @param network its network
     * @param layout how its parameters lie
     * @param agreement speaks with the other processes
     * @param kinds what its optimizer keeps
     * @param names returns the name of a parameter or a block
     */
    TrainerValues(
            TrainerState state,
            Block network,
            StateLayout layout,
            Agreement agreement,
            List<StateKind> kinds,
            Function<Object, String> names) {
        this.state = state;
        this.network = network;
        this.layout = layout;
        this.agreement = agreement;
        this.kinds = kinds;
        this.names = names;
    }

    /** Returns the values after a step. All processes call it: one all-gather. */
    Saved take(
            Map<String, Map<String, ParticipantStates.SavedCut>> participants,
            Map<String, List<String>> blocks) {
        List<String> parameters = new ArrayList<>();
        List<String> frozen = new ArrayList<>();
        for (Parameter parameter : state.getParameters().getAll()) {
            parameters.add(state.getParameters().nameOf(parameter));
            if (!parameter.requiresGradient()) {
                frozen.add(state.getParameters().nameOf(parameter));
            }
        }
        Map<String, String> shared = new LinkedHashMap<>();
        for (Pair<String, Parameter> named : network.getParameters()) {
            String name = state.getParameters().nameOf(named.getValue());
            if (!name.equals(named.getKey())) {
                shared.put(named.getKey(), name);
            }
        }
        return new Saved(
                parameters,
                shared,
                optimizer(),
                margins(),
                state.getLearningRates().getCounts(),
                frozen,
                state.getLossScale().isUsed() ? state.getLossScale().getState() : null,
                state.getRanks().getContext(0).getRandom().getState(),
                participants,
                blocks,
                generators());
    }

    /** Momentum or none: that too is another optimizer. */
    private String optimizer() {
        List<String> kept = kinds.stream().map(StateKind::name).toList();
        return state.getOptimizer().getName() + (kept.isEmpty() ? "" : " with " + kept);
    }

    private Map<String, Margin> margins() {
        Map<String, Margin> margins = new TreeMap<>();
        BlockWalk.of(
                network,
                (block, path, certain) -> {
                    if (block instanceof ClassificationHead head && head.getMargin() != null) {
                        String weight = names.apply(head.getDirectParameters().get("weight"));
                        margins.put(weight, head.getMargin());
                    }
                });
        return margins;
    }

    /**
     * Reads what a checkpoint says of a trainer.
     *
     * @throws CheckpointException if a member is missing or of another kind, or names what is not
     *     there
     */
    static Saved read(Checkpoint checkpoint) throws CheckpointException {
        Saved saved = SavedValues.read(checkpoint, TrainingState.VALUES, Saved.class);
        for (String name : saved.parameters()) {
            if (!checkpoint.getTensors().containsKey(name)) {
                throw wrong(
                        checkpoint, "parameters", "has " + name + ", of which there is no tensor");
            }
        }
        for (Map.Entry<String, String> each : saved.shared().entrySet()) {
            if (!saved.parameters().contains(each.getValue())) {
                throw wrong(
                        checkpoint,
                        "shared." + each.getKey(),
                        "is " + each.getValue() + ", of which there is no parameter");
            }
        }
        return saved;
    }

    private static CheckpointException wrong(Checkpoint checkpoint, String member, String what) {
        return SavedValues.wrong(checkpoint, TrainingState.VALUES + "." + member, what);
    }

    /**
     * Checks that a checkpoint is one of the same network and optimizer.
     *
     * @param checkpoint the checkpoint
     * @param saved its values
     * @throws IllegalArgumentException if it is of another network or optimizer, with a list of
     *     what differs
     */
    void check(Checkpoint checkpoint, Saved saved) {
        Map<String, CutTensor> stored = new LinkedHashMap<>();
        saved.parameters().forEach(name -> stored.put(name, checkpoint.getTensors().get(name)));
        checkNetwork(checkpoint, stored, saved.margins());
        checkOptimizer(checkpoint, saved.optimizer());
        byte[] own = generator(saved);
        if (own != null) {
            RandomDraws.checkState(own); // of the same version of libtorch
        }
    }

    private void checkNetwork(
            Checkpoint checkpoint, Map<String, CutTensor> stored, Map<String, Margin> trained) {
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
        Map<String, Margin> built = margins();
        Set<String> heads = new TreeSet<>(trained.keySet());
        heads.addAll(built.keySet());
        for (String weight : heads) { // with another margin the same weights compute another thing
            if (!Objects.equals(trained.get(weight), built.get(weight))) {
                differences.add(
                        "the head of %s was trained with %s, and this one is built with %s: give it"
                                        .formatted(
                                                weight,
                                                describeMargin(trained.get(weight)),
                                                describeMargin(built.get(weight)))
                                + " the margin that it had (optMargin)");
            }
        }
        if (!differences.isEmpty()) {
            throw new IllegalArgumentException(
                    "The checkpoint "
                            + checkpoint.getPath()
                            + " is of another network: "
                            + list(differences, "; ")
                            + ". Nothing has been changed");
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

    private static String describeMargin(Margin margin) {
        return margin == null ? "no margin" : margin.toString();
    }

    private static String describe(CutTensor tensor) {
        return tensor.name() + " " + tensor.shape() + " " + tensor.type();
    }

    private static String list(List<String> names, String between) {
        int more = names.size() - LISTED;
        return String.join(between, names.subList(0, Math.min(LISTED, names.size())))
                + (more > 0 ? between + "and " + more + " more" : "");
    }

    /** Puts the numbers back. */
    void put(Saved saved) {
        state.getLearningRates().setCounts(saved.updates());
        putFrozen(Set.copyOf(saved.frozen()));
        if (saved.lossScale() != null && state.getLossScale().isUsed()) { // else it begins, or none
            state.getLossScale().setState(saved.lossScale());
        }
        for (int i = 0; i < state.getRanks().size(); i++) {
            state.getRanks().getContext(i).getRandom().setState(saved.seeds());
        }
        byte[] own = generator(saved);
        if (own != null) {
            RandomDraws.setState(own);
        }
    }

    /** A program that has frozen something else before is told: it may have meant it to stay. */
    private void putFrozen(Set<String> names) {
        List<String> thawed = new ArrayList<>();
        List<String> frozen = new ArrayList<>();
        ParallelParameters parameters = state.getParameters();
        for (Parameter parameter : parameters.getAll()) {
            String name = parameters.nameOf(parameter);
            boolean freeze = names.contains(name);
            if (freeze == parameter.requiresGradient()) {
                parameter.freeze(freeze);
                (freeze ? frozen : thawed).add(name);
            }
        }
        if (state.getRanks().getContext(0).getRank() == 0) { // the others do the same
            warn(thawed, "frozen", "trained");
            warn(frozen, "trained", "frozen");
        }
    }

    private static void warn(List<String> changed, String before, String now) {
        if (!changed.isEmpty()) {
            logger.warn(
                    "What was {} before the checkpoint was restored is {} from here on, as it was"
                            + " when the checkpoint was taken: {}. To go on with other"
                            + " parameters frozen than then, freeze and thaw them after that, and"
                            + " not before",
                    before,
                    now,
                    list(changed, ", "));
        }
    }

    /** Returns the states of the generators of all processes, by their first ranks. */
    private Map<String, String> generators() {
        byte[] own = RandomDraws.getState();
        List<byte[]> gathered =
                state.getRanks()
                        .run(
                                context ->
                                        agreement.gather(
                                                context,
                                                context.getLocalIndex() == 0 ? own : new byte[0],
                                                "the generators of random numbers"))
                        .get(0);
        Map<String, String> states = new LinkedHashMap<>();
        for (int rank = 0; rank < gathered.size(); rank++) {
            if (gathered.get(rank).length > 0) {
                states.put("" + rank, Base64.getEncoder().encodeToString(gathered.get(rank)));
            }
        }
        return states;
    }

    /** Returns the state of this process's generator, or null if none began with the same rank. */
    private byte[] generator(Saved saved) {
        String state = saved.generators().get("" + this.state.getRanks().getContext(0).getRank());
        return state == null ? null : Base64.getDecoder().decode(state);
    }
}
