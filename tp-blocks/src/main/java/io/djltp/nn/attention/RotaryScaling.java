package io.djltp.nn.attention;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/**
 * How the angles of a {@link RotaryEmbedding} change so that a model understands longer texts than
 * those it was trained on: the {@code rope_scaling} of a Hugging Face {@code config.json}.
 *
 * <ul>
 *   <li>linear: all angles are divided by the factor (Chen et al., 2023, <a
 *       href="https://arxiv.org/abs/2306.15595">arXiv:2306.15595</a>).
 *   <li>dynamic: the base grows with the length of a text that is longer than the original length.
 *   <li>llama3: angles of long waves are divided by the factor, those of short waves stay, with a
 *       ramp between them.
 *   <li>yarn: the same by the number of turns within the original length, and queries and keys get
 *       longer (Peng et al., 2023, <a
 *       href="https://arxiv.org/abs/2309.00071">arXiv:2309.00071</a>).
 *   <li>longrope: the angle of each pair has its own divisor, another one in a text that is longer
 *       than the original length, and queries and keys get longer (Ding et al., 2024, <a
 *       href="https://arxiv.org/abs/2402.13753">arXiv:2402.13753</a>).
 * </ul>
 */
public final class RotaryScaling {

    private static final String FACTOR = "factor";
    private static final String ORIGINAL = "original_max_position_embeddings";
    private static final String LOW = "low_freq_factor";
    private static final String HIGH = "high_freq_factor";
    private static final String FAST = "beta_fast";
    private static final String SLOW = "beta_slow";
    private static final String ATTENTION = "attention_factor";
    private static final String SCALE = "mscale";
    private static final String SCALE_ALL = "mscale_all_dim";
    private static final String TRUNCATE = "truncate";

    /** Fields of the same object that others read. */
    private static final Set<String> ELSEWHERE =
            Set.of("rope_type", "type", "rope_theta", "partial_rotary_factor");

    /** The divisors of longrope: of texts up to the original length, and of longer ones. */
    private static final List<String> DIVISORS = List.of("short_factor", "long_factor");

    /** What each type knows, and of that what it needs, beside the original length. */
    private enum Type {
        LINEAR(List.of(FACTOR)),
        DYNAMIC(List.of(FACTOR)),
        LLAMA3(List.of(FACTOR, LOW, HIGH)),
        YARN(List.of(FACTOR), FAST, SLOW, ATTENTION, SCALE, SCALE_ALL, TRUNCATE),
        LONGROPE(List.of(FACTOR), ATTENTION);

        private final List<String> needed;
        private final Set<String> known;

        Type(List<String> needed, String... optional) {
            this.needed = needed;
            known = new TreeSet<>(needed);
            known.addAll(List.of(optional));
            known.add(ORIGINAL);
        }

        private String word() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    private final Type type;
    private final Map<String, Double> numbers;
    private final List<List<Double>> divisors; // those of DIVISORS, or none

    private RotaryScaling(Type type, Map<String, Double> numbers) {
        this(type, numbers, List.of());
    }

    private RotaryScaling(Type type, Map<String, Double> numbers, List<List<Double>> divisors) {
        this.type = type;
        this.numbers = new TreeMap<>(numbers);
        this.divisors = divisors;
        double factor = get(FACTOR, 1);
        Errors.check(
                factor >= 1 && !Double.isInfinite(factor),
                "The factor of rotary positions scaled by %s must be 1 or more, not %s",
                type.word(),
                factor);
        double original = get(ORIGINAL, 1);
        Errors.check(
                original >= 1 && original == Math.rint(original),
                "%s must be a whole number above 0, not %s",
                ORIGINAL,
                original);
        Errors.check(
                type != Type.LLAMA3 || get(LOW, 0) > 0 && get(HIGH, 0) > get(LOW, 0),
                "%s %s must be above 0, and %s %s above that",
                LOW,
                numbers.get(LOW),
                HIGH,
                numbers.get(HIGH));
        Errors.check(
                type != Type.YARN || get(SLOW, 1) > 0 && get(FAST, 32) >= get(SLOW, 1),
                "%s %s must be above 0, and %s %s at least that",
                SLOW,
                get(SLOW, 1),
                FAST,
                get(FAST, 32));
    }

    /**
     * Returns scaling that divides all angles.
     *
     * @param factor by what they are divided, 1 or more
     * @return the scaling
     */
    public static RotaryScaling linear(double factor) {
        return new RotaryScaling(Type.LINEAR, Map.of(FACTOR, factor));
    }

    /**
     * Returns scaling whose angles depend on the length of the text.
     *
     * @param factor how much the base grows, 1 or more
     * @param originalPositions the length up to which nothing is scaled
     * @return the scaling
     */
    public static RotaryScaling dynamic(double factor, int originalPositions) {
        return new RotaryScaling(
                Type.DYNAMIC, Map.of(FACTOR, factor, ORIGINAL, (double) originalPositions));
    }

    /**
     * Returns the scaling of Llama 3.1 and newer.
     *
     * @param factor by what angles of long waves are divided, 1 or more
     * @param lowFactor waves longer than the original length divided by this are long
     * @param highFactor waves shorter than the original length divided by this stay as they are
     * @param originalPositions the length that the model was first trained on
     * @return the scaling
     */
    public static RotaryScaling llama3(
            double factor, double lowFactor, double highFactor, int originalPositions) {
        double original = originalPositions;
        return new RotaryScaling(
                Type.LLAMA3,
                Map.of(FACTOR, factor, LOW, lowFactor, HIGH, highFactor, ORIGINAL, original));
    }

    /**
     * Returns the scaling of YaRN, with the numbers of its paper.
     *
     * @param factor by what angles of long waves are divided, 1 or more
     * @param originalPositions the length that the model was first trained on
     * @return the scaling
     */
    public static RotaryScaling yarn(double factor, int originalPositions) {
        return new RotaryScaling(
                Type.YARN, Map.of(FACTOR, factor, ORIGINAL, (double) originalPositions));
    }

    /**
     * Reads the field {@code rope_scaling}, or {@code rope_parameters}, of a {@code config.json}.
     *
     * @param json its value, an object with a {@code rope_type} or {@code type}
     * @param maxPositions the field {@code max_position_embeddings}
     * @return the scaling, or {@code null} for the type {@code default}
     * @throws IllegalArgumentException if the type or a field is not known, or a number is missing
     *     or out of its range
     */
    public static @Nullable RotaryScaling parse(String json, int maxPositions) {
        return parse(json, maxPositions, 0);
    }

    /**
     * Reads the same of a {@code config.json} that has the original length beside it, as that of a
     * Phi-3 does.
     *
     * @param json its value, an object with a {@code rope_type} or {@code type}
     * @param maxPositions the field {@code max_position_embeddings}
     * @param originalPositions the field {@code original_max_position_embeddings}, which counts
     *     instead of that of the object, as in transformers; or 0
     * @return the scaling, or {@code null} for the type {@code default}
     * @throws IllegalArgumentException if the type or a field is not known, or a number is missing
     *     or out of its range
     */
    public static @Nullable RotaryScaling parse(
            String json, int maxPositions, int originalPositions) {
        JsonObject fields = new Gson().fromJson(json, JsonObject.class);
        JsonElement word = fields.get(fields.has("rope_type") ? "rope_type" : "type");
        Map<String, Type> types = new TreeMap<>();
        for (Type each : Type.values()) {
            types.put(each.word(), each);
        }
        String name = word instanceof JsonPrimitive text ? text.getAsString() : "" + word;
        if (name.equals("default")) {
            return null;
        }
        Type type = types.get(name);
        if (type == null) {
            throw Errors.argument(
                    "rope_type is %s; known are default and %s",
                    word, String.join(", ", types.keySet()));
        }
        Map<String, Double> numbers = new TreeMap<>();
        List<List<Double>> divisors = new ArrayList<>();
        if (type == Type.LONGROPE) {
            DIVISORS.forEach(key -> divisors.add(positive(key, fields.remove(key))));
        }
        for (Map.Entry<String, JsonElement> field : fields.entrySet()) {
            String key = field.getKey();
            if (!ELSEWHERE.contains(key) && !field.getValue().isJsonNull()) {
                Errors.check(
                        type.known.contains(key),
                        "The rope_type %s has no field %s; known are %s",
                        name,
                        key,
                        type.known);
                numbers.put(key, number(key, field.getValue()));
            }
        }
        if (originalPositions > 0) {
            numbers.put(ORIGINAL, (double) originalPositions);
        }
        complete(type, numbers, maxPositions);
        return new RotaryScaling(type, numbers, divisors);
    }

    private static List<Double> positive(String key, @Nullable JsonElement value) {
        List<Double> numbers = new ArrayList<>();
        if (value instanceof JsonArray list) {
            list.forEach(each -> numbers.add(number(key, each)));
        }
        Errors.check(
                !numbers.isEmpty() && numbers.stream().allMatch(each -> each > 0),
                "The field %s of rotary positions must be a list of numbers above 0, not %s",
                key,
                value);
        return List.copyOf(numbers);
    }

    private static double number(String key, JsonElement value) {
        if (value instanceof JsonPrimitive primitive) {
            if (primitive.isNumber()) {
                return primitive.getAsDouble();
            }
            if (key.equals(TRUNCATE) && primitive.isBoolean()) {
                return primitive.getAsBoolean() ? 1 : 0;
            }
        }
        throw Errors.argument("The field %s of rotary positions is %s", key, value);
    }

    /** Adds what follows from the greatest position. */
    private static void complete(Type type, Map<String, Double> numbers, int maxPositions) {
        double max = maxPositions;
        switch (type) {
            case LINEAR -> numbers.remove(ORIGINAL);
            case DYNAMIC -> {
                double original = numbers.getOrDefault(ORIGINAL, max);
                Errors.check(
                        original == max,
                        "Programs disagree about a dynamic rope_type whose %s %s is not"
                                + " max_position_embeddings %s: leave it out",
                        ORIGINAL,
                        original,
                        max);
                numbers.put(ORIGINAL, max);
            }
            case LLAMA3 -> numbers.putIfAbsent(ORIGINAL, max);
            case YARN, LONGROPE -> {
                if (numbers.containsKey(ORIGINAL)) {
                    numbers.putIfAbsent(FACTOR, max / numbers.get(ORIGINAL));
                }
                numbers.putIfAbsent(ORIGINAL, max);
            }
        }
        for (String needed : type.needed) {
            Errors.check(
                    numbers.containsKey(needed),
                    "The rope_type %s needs the field %s",
                    type.word(),
                    needed);
        }
    }

    private double get(String name, double byDefault) {
        return numbers.getOrDefault(name, byDefault);
    }

    /**
     * Returns for how many positions a model is that has others without scaling.
     *
     * @param maxPositions the field {@code max_position_embeddings}
     * @return the number of positions
     */
    public int getMaxPositions(int maxPositions) {
        if (type == Type.LLAMA3 || type == Type.LONGROPE) { // which count the scaled ones
            return maxPositions;
        }
        double scaled = get(FACTOR, 1) * get(ORIGINAL, maxPositions);
        return (int) Math.max(maxPositions, Math.min(Integer.MAX_VALUE, scaled));
    }

    /** Returns whether the angles of a text of a length are not those of short texts. */
    boolean dependsOn(long length) {
        return (type == Type.DYNAMIC || type == Type.LONGROPE) && length > get(ORIGINAL, 0);
    }

    /** Returns whether the angles of a text change when it becomes longer. */
    boolean changes(long from, long to) {
        return dependsOn(to) && (type == Type.DYNAMIC ? from != to : !dependsOn(from));
    }

    /** Checks that there is a divisor for each pair of features. */
    void check(long features) {
        for (int i = 0; i < divisors.size(); i++) {
            int count = divisors.get(i).size();
            Errors.check(
                    count == features / 2,
                    "%s must have a number for each of the %s pairs of rotated features, not %s",
                    DIVISORS.get(i),
                    features / 2,
                    count);
        }
    }

    /** Returns the angle of each pair of features at position 1. */
    double[] frequencies(double base, int features, long length) {
        double factor = get(FACTOR, 1);
        double original = get(ORIGINAL, 1);
        double grown = base;
        if (type == Type.DYNAMIC && dependsOn(length)) {
            double growth = factor * length / original - (factor - 1);
            grown = base * Math.pow(growth, features / (features - 2.0));
        }
        double[] frequencies = new double[features / 2];
        for (int i = 0; i < frequencies.length; i++) {
            double plain = Math.pow(grown, -2.0 * i / features);
            double turns = original * plain / (2 * Math.PI); // within the original length
            double low = get(LOW, 0);
            double kept = // the share of the angle that is not divided
                    switch (type) {
                        case LINEAR -> 0;
                        case DYNAMIC, LONGROPE -> 1;
                        case LLAMA3 -> limit((turns - low) / (get(HIGH, 0) - low));
                        case YARN -> 1 - yarnRamp(base, features, i);
                    };
            double divisor =
                    divisors.isEmpty() ? 1 : divisors.get(dependsOn(length) ? 1 : 0).get(i);
            frequencies[i] = (plain / factor * (1 - kept) + plain * kept) / divisor;
        }
        return frequencies;
    }

    private double yarnRamp(double base, int features, int pair) {
        double low = yarnPair(base, features, get(FAST, 32));
        double high = yarnPair(base, features, get(SLOW, 1));
        if (get(TRUNCATE, 1) != 0) {
            low = Math.floor(low);
            high = Math.ceil(high);
        }
        low = Math.max(low, 0);
        high = Math.min(high, features - 1);
        return limit((pair - low) / (high == low ? 0.001 : high - low));
    }

    /** Returns which pair turns so often in the original length, between two pairs. */
    private double yarnPair(double base, int features, double turns) {
        double original = get(ORIGINAL, 1);
        return features * Math.log(original / (turns * 2 * Math.PI)) / (2 * Math.log(base));
    }

    private static double limit(double share) {
        return Math.max(0, Math.min(1, share));
    }

    /** Returns by what turned queries and keys are multiplied. */
    double length() {
        if (type == Type.LONGROPE) {
            double growth = Math.log(get(FACTOR, 1)) / Math.log(get(ORIGINAL, 1));
            return get(ATTENTION, Math.sqrt(1 + (get(FACTOR, 1) > 1 ? growth : 0)));
        }
        if (type != Type.YARN) {
            return 1;
        }
        double scale = get(SCALE, 0);
        double all = get(SCALE_ALL, 0);
        boolean both = scale != 0 && all != 0;
        double byDefault = both ? length(scale) / length(all) : length(1);
        return get(ATTENTION, byDefault);
    }

    private double length(double scale) {
        return 0.1 * scale * Math.log(get(FACTOR, 1)) + 1;
    }

    /** {@inheritDoc} */
    @Override
    public boolean equals(@Nullable Object other) {
        return other instanceof RotaryScaling scaling
                && type == scaling.type
                && numbers.equals(scaling.numbers)
                && divisors.equals(scaling.divisors);
    }

    /** {@inheritDoc} */
    @Override
    public int hashCode() {
        return Objects.hash(type, numbers, divisors);
    }

    /** Returns the type and its numbers. */
    @Override
    public String toString() {
        return type.word() + " " + numbers + (divisors.isEmpty() ? "" : " " + divisors);
    }
}
