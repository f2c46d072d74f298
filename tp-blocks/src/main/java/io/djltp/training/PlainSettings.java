package io.djltp.training;

import ai.djl.training.tracker.ParameterTracker;

import io.djltp.parameters.BlockWalk;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The numbers, words and choices that an object of DJL or of this library was built with, read from
 * its fields: what processes can compare. Of other classes only the name is known: their fields may
 * hold anything, also what differs between processes for a good reason.
 */
final class PlainSettings {

    private static final List<String> READ =
            List.of(
                    "ai.djl.nn.",
                    "ai.djl.training.",
                    "io.djltp.nn.",
                    "io.djltp.loss.",
                    "io.djltp.optimizer.",
                    "io.djltp.rank.LossScaling");

    /** A count of updates that is not used, and memory, which machines have more or less of. */
    private static final Set<String> IGNORED = Set.of("numUpdate", "fusedMemory");

    private PlainSettings() {}

    /** Adds the class of an object and its settings, each under the name and that of its field. */
    static void add(Map<String, String> facts, String name, Object value) {
        facts.put(name, value == null ? "not set" : className(value));
        addFields(facts, name, value);
    }

    /** Adds the settings of an object without its class. */
    static void addFields(Map<String, String> facts, String name, Object owner) {
        Class<?> type = owner == null ? null : owner.getClass();
        for (; type != null; type = type.getSuperclass()) {
            if (isRead(type)) {
                Field[] fields = type.getDeclaredFields();
                Arrays.sort(fields, Comparator.comparing(Field::getName));
                for (Field field : fields) {
                    addField(facts, name + "." + field.getName(), owner, field);
                }
            }
        }
    }

    private static void addField(
            Map<String, String> facts, String name, Object owner, Field field) {
        boolean ours = field.getDeclaringClass().getName().startsWith("io.djltp.");
        int modifiers = field.getModifiers();
        // DJL's settings are not final; with us what is not final is not a setting
        if (Modifier.isStatic(modifiers)
                || ours && !Modifier.isFinal(modifiers)
                || IGNORED.contains(field.getName())) {
            return;
        }
        Object value = BlockWalk.valueOf(owner, field);
        if (value instanceof Number
                || value instanceof Boolean
                || value instanceof String
                || value instanceof Enum) {
            facts.put(name, stable(value.toString())); // DJL names blocks by their lambdas
        } else if (value instanceof ParameterTracker || value instanceof Record) {
            add(facts, name, value);
        }
    }

    /** Returns the name of an object's class; that of a lambda is another one in every process. */
    static String className(Object value) {
        return stable(value.getClass().getName());
    }

    private static String stable(String name) {
        return name.replaceFirst("\\$\\$Lambda.*", " (a lambda)");
    }

    private static boolean isRead(Class<?> type) {
        String name = type.getName();
        return READ.stream().anyMatch(name::startsWith)
                || type.isRecord() && name.startsWith("io.djltp.");
    }
}
