package io.djltp.spark.ml;

import ai.djl.util.JsonUtils;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * A trained network, as it lies in files: DJL's parameters, how the network is built, and the names
 * of its classes.
 *
 * @param plan how it is built
 * @param parameters its parameters in DJL's format
 * @param names the names of the classes, or none
 * @param losses the mean loss of each epoch
 */
record SavedNetwork(NetworkPlan plan, byte[] parameters, String[] names, double[] losses) {

    /** The name of the model, as DJL has it: the beginning of the file of its parameters. */
    static final String NAME = "classifier";

    static final String PARAMETERS = NAME + "-0000.params";
    static final String NETWORK = "network.json";
    static final String NAMES = "synset.txt";
    static final String LOSSES = "losses.json";

    /** Returns the files. */
    Map<String, byte[]> files() {
        Map<String, byte[]> files = new TreeMap<>();
        files.put(PARAMETERS, parameters);
        files.put(NETWORK, plan.toJson().getBytes(StandardCharsets.UTF_8));
        files.put(LOSSES, JsonUtils.GSON.toJson(losses).getBytes(StandardCharsets.UTF_8));
        if (names.length > 0) { // of an empty file DJL's translators take no classes for all
            StringBuilder lines = new StringBuilder();
            for (String name : names) {
                // one name a line, as DJL reads it
                lines.append(name.replaceAll("\\R", " ")).append('\n');
            }
            files.put(NAMES, lines.toString().getBytes(StandardCharsets.UTF_8));
        }
        return files;
    }

    /** Makes a network of its files. */
    static SavedNetwork of(Map<String, byte[]> files) {
        List<String> names =
                files.containsKey(NAMES) ? text(files, NAMES).lines().toList() : List.of();
        return new SavedNetwork(
                NetworkPlan.ofJson(text(files, NETWORK)),
                files.get(PARAMETERS),
                names.toArray(new String[0]),
                JsonUtils.GSON.fromJson(text(files, LOSSES), double[].class));
    }

    private static String text(Map<String, byte[]> files, String name) {
        return new String(files.get(name), StandardCharsets.UTF_8);
    }
}
