package io.djltp.checkpoint;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import io.djltp.head.Margin;
import io.djltp.internal.optimizer.LossScale;
import io.djltp.internal.optimizer.StateKind;
import io.djltp.internal.parameters.BlockWalk;
import io.djltp.internal.rank.RandomSeeds;
import io.djltp.internal.torch.RandomDraws;
import io.djltp.nn.ClassificationHead;
import io.djltp.training.TrainerState;

import org.jspecify.annotations.Nullable;
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

/**
 * What the index of a checkpoint says of a trainer, beside its tensors: what network and optimizer
 * it has, to be compared, and its numbers, to be put back. All of it is read and checked before
 * anything is changed.
 */
final class TrainerValues {

    /** The name of these values among those of a checkpoint. */
    static final String NAME = "trainer";

    private static final Logger logger = LoggerFactory.getLogger(TrainerValues.class);

    private static final int LISTED = 20; // names in a message

    private final TrainerState state;
    private final Block network;
    private final StateLayout layout;
    private final Agreement agreement;

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
     *     process, and nothing of other ranks
     */
    record Saved(
            List<String> parameters,
            Map<String, String> shared,
            String optimizer,
            Map<String, Margin> margins,
            Map<String, Integer> updates,
            List<String> frozen,
            LossScale.@Nullable State lossScale,
            RandomSeeds.State seeds,
            Map<String, Map<String, ParticipantStates.SavedCut>> participants,
            Map<String, List<String>> blocks,
            List<String> generators) {

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

    TrainerValues(TrainerState state, Block network, StateLayout layout, Agreement agreement) {
        this.state = state;
        this.network = network;
        this.layout = layout;
        this.agreement = agreement;
    }

    /** Reads what a checkpoint says of a trainer, or returns null if it is not one of a trainer. */
    static @Nullable Saved read(Checkpoint checkpoint) throws CheckpointException {
        return checkpoint.getValues().has(NAME) ? checkpoint.getValues(NAME, Saved.class) : null;
    }

    /** Returns the values after a step. All processes call it: one all-gather. */
    Saved take(
            Map<String, Map<String, ParticipantStates.SavedCut>> participants,
            Map<String, List<String>> blocks) {
        List<String> parameters = new ArrayList<>();
        List<String> frozen = new ArrayList<>();
        for (Parameter parameter : state.getParameters().getAll()) {
            parameters.add(layout.nameOf(parameter));
            if (!parameter.requiresGradient()) {
                frozen.add(layout.nameOf(parameter));
            }
        }
        Map<String, String> shared = new LinkedHashMap<>();
        for (Pair<String, Parameter> named : network.getParameters()) {
            String name = layout.nameOf(named.getValue());
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
        List<String> kept =
                StateKind.of(state.getOptimizer()).stream().map(StateKind::name).toList();
        return state.getOptimizer().getName() + (kept.isEmpty() ? "" : " with " + kept);
    }

    private Map<String, Margin> margins() {
        Map<String, Margin> margins = new TreeMap<>();
        BlockWalk.of(
                network,
                (block, path, certain) -> {
                    if (block instanceof ClassificationHead head && head.getMargin() != null) {
                        margins.put(
                                layout.nameOf(head.getDirectParameters().get("weight")),
                                head.getMargin());
                    }
                });
        return margins;
    }

    /**
     * Checks that a checkpoint is one of the same network and optimizer.
     *
     * @param checkpoint the checkpoint
     * @param saved its values
     * @throws IllegalArgumentException if it is of another network or optimizer, with a list of
     *     what differs
     */
    void check(Checkpoint checkpoint, Saved saved) throws CheckpointException {
        List<String> differences = differences(checkpoint, saved);
        if (!differences.isEmpty()) {
            throw new IllegalArgumentException(
                    ("The checkpoint %s is of another network: %s. Nothing has been changed")
                            .formatted(checkpoint.getPath(), list(differences, "; ")));
        }
        if (!saved.optimizer().equals(optimizer())) {
            throw new IllegalArgumentException(
                    ("The checkpoint %s is of another optimizer, %s, and the trainer "
                                    + "has %s: give it the same one. To go on from the weights alone, "
                                    + "load them from a saved model")
                            .formatted(checkpoint.getPath(), saved.optimizer(), optimizer()));
        }
        byte[] generator = generator(saved);
        if (generator != null) {
            RandomDraws.checkState(generator); // of the same version of libtorch
        }
    }

    private List<String> differences(Checkpoint checkpoint, Saved saved)
            throws CheckpointException {
        Map<String, CutTensor> stored = new LinkedHashMap<>();
        for (String name : saved.parameters()) {
            stored.put(name, checkpoint.getTensor(name));
        }
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
        stored.values().forEach(each -> differences.add(describe(each) + " is not in the network"));
        Map<String, Margin> built = margins();
        TreeSet<String> heads = new TreeSet<>(saved.margins().keySet());
        heads.addAll(built.keySet());
        for (String weight : heads) { // with another margin the same weights compute another thing
            Margin trained = saved.margins().get(weight);
            if (!Objects.equals(trained, built.get(weight))) {
                differences.add(
                        "the head of %s was trained with %s, and this one is built with %s: give it"
                                        .formatted(
                                                weight,
                                                Objects.requireNonNullElse(trained, "no margin"),
                                                Objects.requireNonNullElse(
                                                        built.get(weight), "no margin"))
                                + " the margin that it had (optMargin)");
            }
        }
        return differences;
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
        for (int i = 0; i < layout.ranks(); i++) {
            state.getRanks().getContext(i).getRandom().setState(saved.seeds());
        }
        byte[] generator = generator(saved);
        if (generator != null) {
            RandomDraws.setState(generator);
        }
    }

    /** A program that has frozen something else before is told: it may have meant it to stay. */
    private void putFrozen(Set<String> names) {
        List<String> thawed = new ArrayList<>();
        List<String> frozen = new ArrayList<>();
        for (Parameter parameter : state.getParameters().getAll()) {
            String name = layout.nameOf(parameter);
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
    private List<String> generators() {
        List<byte[]> gathered =
                agreement.gather(RandomDraws.getState(), "the generators of random numbers");
        return gathered.stream().map(Base64.getEncoder()::encodeToString).toList();
    }

    /** Returns the state of this process's generator, or null if none began with the same rank. */
    private byte @Nullable [] generator(Saved saved) {
        int rank = state.getRanks().getContext(0).getRank();
        String text = rank < saved.generators().size() ? saved.generators().get(rank) : "";
        return text.isEmpty() ? null : Base64.getDecoder().decode(text);
    }
}
