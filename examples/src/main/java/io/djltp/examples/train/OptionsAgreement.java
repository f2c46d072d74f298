package io.djltp.examples.train;

import io.djltp.examples.BadInputException;
import io.djltp.examples.lemma.Language;
import io.djltp.job.Job;

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * Lets the processes of a job compare their options before they train together: with other seeds or
 * batches they would train nonsense, and with other numbers of epochs wait for each other.
 */
final class OptionsAgreement {

    private OptionsAgreement() {}

    /**
     * Compares the options that all processes must have alike.
     *
     * @param options those of this process
     * @param job the job
     * @throws BadInputException on all processes, if two of them differ
     */
    static void check(TrainOptions options, Job job) {
        Map<String, String> values = values(options);
        byte[] mine = String.join("\n", values.values()).getBytes(StandardCharsets.UTF_8);
        byte[][] all = job.exchange("options", mine);
        String[] names = values.keySet().toArray(String[]::new);
        String[] first = decode(all[0]);
        for (int process = 1; process < all.length; process++) {
            String[] other = decode(all[process]);
            for (int i = 0; i < names.length; i++) {
                if (!other[i].equals(first[i])) {
                    throw new BadInputException(
                            names[i]
                                    + " is "
                                    + first[i]
                                    + " on process 0 and "
                                    + other[i]
                                    + " on process "
                                    + process
                                    + ": start all processes with the same options");
                }
            }
        }
    }

    /** Returns all options but those that only process 0 uses, and --tp: the job compares that. */
    private static Map<String, String> values(TrainOptions options) {
        Map<String, String> values = new LinkedHashMap<>();
        values.put(
                "--languages",
                options.languages.stream().map(Language::code).collect(Collectors.joining(",")));
        values.put("--mode", orNotSet(options.ranks.modeName()));
        values.put("--mesh", orNotSet(options.ranks.meshName()));
        values.put("--dim", "" + options.dim);
        values.put("--batch", "" + options.batch);
        values.put("--epochs", "" + options.epochs());
        values.put("--steps", options.steps == null ? "not set" : "" + options.steps);
        values.put("--minutes", options.minutes == null ? "not set" : "" + options.minutes);
        values.put("--backend", options.ranks.where.backend.getName());
        values.put("--device", lowerCase(options.ranks.where.device));
        values.put("--timeout", "" + options.ranks.where.timeoutSeconds);
        values.put("--drift-check", "" + options.ranks.driftCheckSteps);
        values.put("--head", lowerCase(options.head));
        values.put("--sample-share", String.valueOf(options.sampleShare));
        values.put("--optimizer", lowerCase(options.optimizer));
        values.put("--lr", "" + options.learningRate());
        values.put("--seed", "" + options.seed);
        return values;
    }

    private static String orNotSet(String value) {
        return value == null ? "not set" : value;
    }

    private static String lowerCase(Enum<?> value) {
        return value.name().toLowerCase(Locale.ROOT);
    }

    private static String[] decode(byte[] values) {
        return new String(values, StandardCharsets.UTF_8).split("\n", -1);
    }
}
