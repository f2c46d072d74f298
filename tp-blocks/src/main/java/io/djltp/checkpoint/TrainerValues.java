package io.djltp.checkpoint;

import ai.djl.nn.Parameter;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RandomSeeds;
import io.djltp.training.TrainerState;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The numbers of a trainer: steps, updates, seeds, and which parameters are frozen. */
final class TrainerValues {

    private static final String UPDATES = "updates";
    private static final String FROZEN = "frozen";
    private static final String SEED = "seed";
    private static final String ASKED = "asked";

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
        RandomSeeds.State seeds = state.getRanks().getContext(0).getRandom().getState();
        values.addProperty(SEED, seeds.seed());
        values.addProperty(ASKED, seeds.asked());
    }

    /** Puts numbers back. */
    static void put(TrainerState state, JsonObject values) {
        Map<String, Integer> counts = new TreeMap<>();
        JsonObject updates = values.getAsJsonObject(UPDATES);
        updates.keySet().forEach(name -> counts.put(name, updates.get(name).getAsInt()));
        state.getLearningRates().setCounts(counts);
        List<String> frozen = new ArrayList<>();
        values.getAsJsonArray(FROZEN).forEach(name -> frozen.add(name.getAsString()));
        ParallelParameters parameters = state.getParameters();
        for (Parameter parameter : parameters.getAll()) {
            boolean freeze = frozen.contains(parameters.nameOf(parameter));
            if (freeze == parameter.requiresGradient()) {
                parameter.freeze(freeze);
            }
        }
        RandomSeeds.State seeds =
                new RandomSeeds.State(values.get(SEED).getAsLong(), values.get(ASKED).getAsLong());
        for (int i = 0; i < state.getRanks().size(); i++) {
            ParallelContext context = state.getRanks().getContext(i);
            context.getRandom().setState(seeds);
        }
    }
}
