package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.parameters.BlockWalk;
import io.djltp.torch.Checksum;

import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.util.AbstractList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Stream;

/**
 * What an object of DJL or of this library was built with, read from all its fields: what processes
 * can compare. A field that is no setting has to be named here, so that none is forgotten. Of other
 * classes only the name is known: their fields may hold anything, also what differs between
 * processes for a good reason.
 */
final class PlainSettings {

    private static final List<String> READ =
            List.of(
                    "ai.djl.nn.",
                    "ai.djl.training.",
                    "ai.djl.modality.",
                    "ai.djl.util.Pair",
                    "io.djltp.cut.",
                    "io.djltp.head.",
                    "io.djltp.loss.",
                    "io.djltp.nn.",
                    "io.djltp.optimizer.",
                    "io.djltp.rank.LossScaling",
                    "io.djltp.sharding.",
                    "io.djltp.torch.LinearProduct",
                    "io.djltp.zoo.minilm.");

    /** Memory, devices, threads, locks: not even their classes are compared. */
    private static final List<String> SKIPPED =
            List.of(
                    "java.",
                    "jdk.",
                    "sun.",
                    "org.bytedeco.",
                    "org.slf4j.",
                    "ai.djl.",
                    "io.djltp.parameters.",
                    "io.djltp.rank.");

    /** What a class has counted, kept or been given since it was built, and a limit of memory. */
    private static final Set<String> IGNORED =
            Set.of(
                    "AbstractAccuracy.correctInstances",
                    "AbstractBaseBlock.inputNames",
                    "AbstractBaseBlock.inputShapes",
                    "AbstractBaseBlock.outputDataTypes",
                    "AbstractBlock.children", // compared by themselves
                    "ClassificationHead.fusedMemory",
                    "Evaluator.totalInstances",
                    "Linear.inputShape",
                    "LinearCollection.inputShape",
                    "Loss.totalLoss",
                    "MixtureOfExperts.passes",
                    "Multiplication.inputShape",
                    "MultiFactorTracker.stepIndex",
                    "Optimizer.numUpdate",
                    "Optimizer.updateCounts",
                    "ParallelDropout.first",
                    "ParallelDropout.start",
                    "RotaryEmbedding.known",
                    "RouterLoss.found");

    private static final int SHOWN = 32; // of many numbers, a checksum is compared

    private final Map<String, String> facts;
    private final Set<Object> within = Collections.newSetFromMap(new IdentityHashMap<>());

    private PlainSettings(Map<String, String> facts) {
        this.facts = facts;
    }

    /** Adds the class of an object and its settings, each under the name and that of its field. */
    static void add(Map<String, String> facts, String name, Object value) {
        facts.put(name, value == null ? "not set" : className(value));
        addFields(facts, name, value);
    }

    /** Adds the settings of an object without its class. */
    static void addFields(Map<String, String> facts, String name, Object owner) {
        if (owner != null) {
            new PlainSettings(facts).addFields(name, owner);
        }
    }

    private void addFields(String name, Object owner) {
        if (!within.add(owner)) {
            return; // it has itself
        }
        for (Class<?> type = owner.getClass(); type != null; type = type.getSuperclass()) {
            if (isRead(type)) {
                Field[] fields = type.getDeclaredFields();
                Arrays.sort(fields, Comparator.comparing(Field::getName));
                for (Field field : fields) {
                    if (isSetting(field)) {
                        add(name + "." + field.getName(), BlockWalk.valueOf(owner, field));
                    }
                }
            }
        }
        within.remove(owner);
    }

    private static boolean isSetting(Field field) {
        String name = field.getDeclaringClass().getSimpleName() + "." + field.getName();
        return !Modifier.isStatic(field.getModifiers())
                && !Modifier.isTransient(field.getModifiers())
                && !field.getName().startsWith("this$")
                && !IGNORED.contains(name);
    }

    private void add(String name, Object value) {
        String text = plain(value);
        if (value == null || value instanceof Block || value instanceof Parameter) {
            return; // blocks and parameters are compared by themselves
        }
        if (text != null) {
            facts.put(name, text);
        } else if (value instanceof NDArray) {
            addArray(name, (NDArray) value);
        } else if (value.getClass().isArray()) {
            addElements(name, elements(value));
        } else if (value instanceof List && !(value instanceof NDList)) {
            addElements(name, (List<?>) value);
        } else if (value instanceof Map) {
            addUnordered(name, ((Map<?, ?>) value).values()); // keys may be ids of parameters
        } else if (value instanceof Collection) {
            addUnordered(name, (Collection<?>) value);
        } else if (value instanceof Optional) {
            add(name, ((Optional<?>) value).orElse(null));
        } else {
            addObject(name, value);
        }
    }

    private void addObject(String name, Object value) {
        boolean read = isRead(value.getClass());
        boolean skipped = SKIPPED.stream().anyMatch(value.getClass().getName()::startsWith);
        if (read || !skipped && !Proxy.isProxyClass(value.getClass())) {
            facts.put(name, className(value));
            addFields(name, value);
        }
    }

    private void addArray(String name, NDArray array) {
        try {
            facts.put(
                    name,
                    "%s %s, checksum %x"
                            .formatted(array.getShape(), array.getDataType(), Checksum.of(array)));
        } catch (RuntimeException e) {
            facts.put(name, "an array that is closed");
        }
    }

    private void addElements(String name, List<?> elements) {
        if (elements.stream().allMatch(element -> plain(element) != null)) {
            facts.put(name, summary(elements.size(), elements.stream().map(PlainSettings::plain)));
            return;
        }
        for (int i = 0; i < elements.size(); i++) {
            add(name + "[" + i + "]", elements.get(i));
        }
    }

    private void addUnordered(String name, Collection<?> elements) {
        List<String> texts =
                elements.stream()
                        .map(PlainSettings::plain)
                        .filter(Objects::nonNull)
                        .sorted()
                        .toList();
        if (!texts.isEmpty()) {
            facts.put(name, summary(texts.size(), texts.stream()));
        }
    }

    private static String summary(int count, Stream<String> texts) {
        return count <= SHOWN
                ? texts.toList().toString()
                : "%d values, checksum %x"
                        .formatted(
                                count,
                                texts.mapToLong(String::hashCode)
                                        .reduce(1, (sum, next) -> 31 * sum + next));
    }

    /** Returns the text of a number, word or choice, or {@code null} of anything else. */
    private static String plain(Object value) {
        boolean plain =
                value == null
                        || value instanceof Number && isOfJava(value) // no counter
                        || value instanceof Boolean
                        || value instanceof Character
                        || value instanceof String
                        || value instanceof Enum
                        || value instanceof Shape;
        return plain ? stable("" + value) : null; // DJL names blocks by their lambdas
    }

    private static boolean isOfJava(Object number) {
        return number.getClass().getPackageName().equals("java.lang");
    }

    private static List<Object> elements(Object array) {
        return new AbstractList<>() {
            @Override
            public Object get(int index) {
                return Array.get(array, index);
            }

            @Override
            public int size() {
                return Array.getLength(array);
            }
        };
    }

    /** Returns the name of an object's class; that of a lambda is another one in every process. */
    static String className(Object value) {
        return stable(value.getClass().getName());
    }

    private static String stable(String name) {
        return name.replaceFirst("\\$\\$Lambda.*", " (a lambda)");
    }

    /** Returns whether the fields of a class are read, those of its own. */
    static boolean isRead(Class<?> type) {
        return READ.stream().anyMatch(type.getName()::startsWith);
    }
}
