package io.djltp.training;

import ai.djl.nn.Block;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.recurrent.RecurrentBlock;
import ai.djl.util.Pair;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * DJL's dropout in a network, wherever it sits: as a child of a block, in a field of one (DJL's
 * transformer blocks have it there), in collections of blocks in fields, or as a rate of a
 * recurrent block, which libtorch applies between layers.
 */
final class DropoutSearch {

    private static final Logger logger = LoggerFactory.getLogger(DropoutSearch.class);

    private final Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
    private final List<Found> found = new ArrayList<>();

    /**
     * A block that draws in training.
     *
     * @param path where it is: children by name, fields after a dot
     * @param what the class and the rate
     * @param certain whether it is surely used: not in a field of a class that is not DJL's, where
     *     it may be there for something else
     */
    record Found(String path, String what, boolean certain) {

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return path.isEmpty() ? what : path + " (" + what + ")";
        }
    }

    /**
     * Searches a network.
     *
     * @param network the network
     */
    DropoutSearch(Block network) {
        visit(network, "", true);
    }

    /** Returns what was found. */
    List<Found> getFound() {
        return found;
    }

    private void visit(Object value, String path, boolean certain) {
        if (!isSearched(value) || !seen.add(value)) {
            return;
        }
        if (value instanceof Block) {
            visitBlock((Block) value, path, certain);
            return;
        }
        int i = 0;
        for (Object element : elements(value)) {
            if (isSearched(element)) { // a name for each element of a long list takes its time
                visit(element, path + "[" + i + "]", certain);
            }
            i++;
        }
    }

    private static boolean isSearched(Object value) {
        return value instanceof Block
                || value instanceof Collection
                || value instanceof Map
                || value instanceof Object[];
    }

    private static Collection<?> elements(Object value) {
        if (value instanceof Map) {
            return ((Map<?, ?>) value).values();
        }
        return value instanceof Collection
                ? (Collection<?>) value
                : Arrays.asList((Object[]) value);
    }

    private void visitBlock(Block block, String path, boolean certain) {
        if (block instanceof Dropout) {
            add(block, path, number(block, Dropout.class, "rate", 1), certain);
        } else if (block instanceof RecurrentBlock
                && number(block, RecurrentBlock.class, "numLayers", 2) > 1) {
            add(block, path, number(block, RecurrentBlock.class, "dropRate", 1), certain);
        }
        for (Pair<String, Block> child : block.getChildren()) {
            visit(
                    child.getValue(),
                    path.isEmpty() ? child.getKey() : path + "/" + child.getKey(),
                    certain);
        }
        for (Class<?> type = block.getClass(); type != null; type = type.getSuperclass()) {
            boolean djl = type.getName().startsWith("ai.djl.");
            for (Field field : type.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers()) && !field.getType().isPrimitive()) {
                    visit(valueOf(block, field), path + "." + field.getName(), certain && djl);
                }
            }
        }
    }

    private void add(Block block, String path, double rate, boolean certain) {
        if (rate > 0) {
            String what = block.getClass().getSimpleName() + ", rate " + (float) rate;
            found.add(new Found(path, what, certain));
        }
    }

    /** Reads a number that DJL keeps to itself. */
    private static double number(Block block, Class<?> type, String name, double otherwise) {
        try {
            Object value = valueOf(block, type.getDeclaredField(name));
            return value == null ? otherwise : ((Number) value).doubleValue();
        } catch (NoSuchFieldException e) {
            logger.debug("{} of this DJL has no field {}", type, name, e);
            return otherwise;
        }
    }

    private static Object valueOf(Block block, Field field) {
        try {
            field.setAccessible(true);
            return field.get(block);
        } catch (IllegalAccessException | RuntimeException e) {
            // a module that is closed to us: execution finds what draws
            logger.debug("{} cannot be read", field, e);
            return null;
        }
    }
}
