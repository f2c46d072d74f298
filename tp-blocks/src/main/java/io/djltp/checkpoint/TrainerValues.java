package io.djltp.checkpoint;

import ai.djl.nn.Parameter;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.optimizer.LossScale;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RandomSeeds;
import io.djltp.training.TrainerState;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** The numbers of a trainer: steps, updates, the loss scale, seeds, what is frozen. */
final class TrainerValues {

    private static final Logger logger = LoggerFactory.getLogger(TrainerValues.class);

    private static final int LISTED = 20; // names in a warning
    private static final String UPDATES = "updates";
    private static final String FROZEN = "frozen";
    private static final String SEED = "seed";
    private static final String ASKED = "asked";
    private static final String LOSS_SCALE = "loss_scale";
    private static final String SCALE = "scale";
    private static final String GOOD_STEPS = "good_steps";
    private static final String SKIPPED_STEPS = "skipped_steps";

    private TrainerValues() {}

    /** Adds the numbers of a trainer to values. */
    static void take(TrainerState state, JsonObject values) {
        JsonObject updates = new JsonObject();
        state.getLearningRates().getCounts().forEach(updates::addProperty);
        values.add(UPDATES, updates);
        JsonArray frozen = new JsonArray();
        ParallelParameters parameters = state.getParameters();
        for (Parameter parameter : parameters.getAll()) {
            if (!parameter.requiresGradient()) {
                frozen.add(parameters.nameOf(parameter));
            }
        }
        values.add(FROZEN, frozen);
        if (state.getLossScale().isUsed()) {
            LossScale.State scale = state.getLossScale().getState();
            JsonObject lossScale = new JsonObject();
            lossScale.addProperty(SCALE, scale.scale());
            lossScale.addProperty(GOOD_STEPS, scale.goodSteps());
            lossScale.addProperty(SKIPPED_STEPS, scale.skippedSteps());
            values.add(LOSS_SCALE, lossScale);
        }
        RandomSeeds.State seeds = state.getRanks().getContext(0).getRandom().getState();
        values.addProperty(SEED, seeds.seed());
        values.addProperty(ASKED, seeds.asked());
    }

    /**
     * The numbers of a trainer.
     *
     * @param updates the number of the last update of each parameter that was updated
     * @param frozen the names of the parameters that are frozen
     * @param lossScale the scale, or {@code null} if the trainer had none
     * @param seeds what the next seeds follow from
     */
    record Saved(
            Map<String, Integer> updates,
            List<String> frozen,
            LossScale.State lossScale,
            RandomSeeds.State seeds) {}

    /**
     * Reads numbers.
     *
     * @param saved what {@link #take} has noted
     * @param parameters the names of all parameters
     * @param updated the names of those of which the optimizer keeps something: they were updated
     * @param step the step of the checkpoint
     * @param most the largest number of an update that so many steps can make
     */
    static Saved read(
            SavedMembers saved, List<String> parameters, Set<String> updated, long step, long most)
            throws CheckpointException {
        List<String> frozen = saved.texts(FROZEN);
        if (!parameters.containsAll(frozen)) {
            throw saved.wrong(FROZEN, "has " + frozen + ", which are not all parameters");
        }
        Map<String, Integer> updates = new TreeMap<>();
        SavedMembers numbers = saved.object(UPDATES);
        for (String name : updated) {
            numbers.get(name);
        }
        for (String name : numbers.names()) {
            if (!parameters.contains(name)) {
                throw numbers.wrong(name, "is of no parameter");
            }
            int number = (int) numbers.whole(name, 1, Integer.MAX_VALUE);
            if (number > most) {
                throw numbers.wrong(
                        name,
                        "is " + number + ", and " + step + " steps make " + most + " at most");
            }
            updates.put(name, number);
        }
        boolean stepped = step > 0 && !saved.has(LOSS_SCALE); // which may have left all steps out
        if (stepped && updates.isEmpty() && frozen.size() < parameters.size()) {
            throw saved.wrong(UPDATES, "is empty after " + step + " steps");
        }
        LossScale.State scale = saved.has(LOSS_SCALE) ? scale(saved.object(LOSS_SCALE)) : null;
        RandomSeeds.State seeds = new RandomSeeds.State(saved.whole(SEED), saved.whole(ASKED));
        return new Saved(updates, frozen, scale, seeds);
    }

    private static LossScale.State scale(SavedMembers saved) throws CheckpointException {
        return new LossScale.State(
                saved.single(SCALE),
                (int) saved.whole(GOOD_STEPS, 0, Integer.MAX_VALUE),
                saved.whole(SKIPPED_STEPS));
    }

    /** Puts numbers back. */
    static void put(TrainerState state, Saved saved) {
        state.getLearningRates().setCounts(saved.updates());
        putFrozen(state, Set.copyOf(saved.frozen()));
        if (saved.lossScale() != null && state.getLossScale().isUsed()) { // else it begins, or none
            state.getLossScale().setState(saved.lossScale());
        }
        for (int i = 0; i < state.getRanks().size(); i++) {
            ParallelContext context = state.getRanks().getContext(i);
            context.getRandom().setState(saved.seeds());
        }
    }

    /** A program that has frozen something else before is told: it may have meant it to stay. */
    private static void putFrozen(TrainerState state, Set<String> names) {
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
            List<String> first = changed.subList(0, Math.min(LISTED, changed.size()));
            int more = changed.size() - first.size();
            logger.warn(
                    "What was {} before the checkpoint was restored is {} from here on, as it was"
                            + " when the checkpoint was taken: {}{}. To go on with other"
                            + " parameters frozen than then, freeze and thaw them after that, and"
                            + " not before",
                    before,
                    now,
                    String.join(", ", first),
                    more > 0 ? " and " + more + " more" : "");
        }
    }
}
