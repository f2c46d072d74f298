package io.djltp.checkpoint;

import ai.djl.nn.Block;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.head.Margin;
import io.djltp.nn.ClassificationHead;
import io.djltp.parameters.BlockWalk;

import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Function;

/**
 * The margins of the heads of a network, which their weights were trained with: a head with another
 * margin, or with none, computes something else of the same weights.
 */
final class HeadMargins {

    private static final String MARGINS = "margins";
    private static final String SCALE = "scale";

    private HeadMargins() {}

    /** Notes the margins by the names of the weights. */
    static void take(Block network, Function<Object, String> names, JsonObject values) {
        JsonObject margins = new JsonObject();
        of(network, names)
                .forEach(
                        (weight, margin) -> {
                            JsonObject noted = new JsonObject();
                            noted.addProperty(SCALE, margin.scale());
                            noted.addProperty("m1", margin.m1());
                            noted.addProperty("m2", margin.m2());
                            noted.addProperty("m3", margin.m3());
                            margins.add(weight, noted);
                        });
        values.add(MARGINS, margins);
    }

    private static Map<String, Margin> of(Block network, Function<Object, String> names) {
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
     * Reads the margins.
     *
     * @return the margins by the names of the weights, none if an older version has written them
     */
    static Map<String, Margin> read(SavedMembers saved) throws CheckpointException {
        Map<String, Margin> margins = new TreeMap<>();
        if (!saved.has(MARGINS)) {
            return margins;
        }
        SavedMembers noted = saved.object(MARGINS);
        for (String weight : noted.names()) {
            SavedMembers each = noted.object(weight);
            float scale = each.single(SCALE);
            float m1 = each.single("m1");
            float m2 = each.single("m2");
            float m3 = each.single("m3");
            try {
                margins.put(weight, new Margin(scale, m1, m2, m3));
            } catch (IllegalArgumentException e) {
                throw noted.wrong(weight, "is no margin: " + e.getMessage());
            }
        }
        return margins;
    }

    /**
     * Checks that the heads of a network have the margins of a checkpoint.
     *
     * @throws IllegalArgumentException if one has another
     */
    static void check(
            Checkpoint checkpoint,
            SavedMembers saved,
            Block network,
            Function<Object, String> names)
            throws CheckpointException {
        if (!saved.has(MARGINS)) {
            return; // of an older version
        }
        Map<String, Margin> trained = read(saved);
        Map<String, Margin> built = of(network, names);
        TreeSet<String> weights = new TreeSet<>(trained.keySet());
        weights.addAll(built.keySet());
        for (String weight : weights) {
            Margin before = trained.get(weight);
            Margin now = built.get(weight);
            if (before == null || !before.equals(now)) {
                throw new IllegalArgumentException(
                        String.format(
                                "The checkpoint %s is of another network: the head of %s was"
                                        + " trained with %s, and this one is built with %s. Give"
                                        + " the head the margin that it had (optMargin). Nothing"
                                        + " has been changed",
                                checkpoint.getPath(), weight, describe(before), describe(now)));
            }
        }
    }

    private static String describe(Margin margin) {
        return margin == null ? "no margin" : margin.toString();
    }
}
