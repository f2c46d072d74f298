package io.djltp.internal.parameters;

import ai.djl.nn.Block;
import ai.djl.util.Pair;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.Set;

/**
 * All blocks of a network: the children of blocks, those that blocks have in fields without telling
 * (DJL's transformer blocks do), and those in collections in fields.
 */
public final class BlockWalk {

    private static final Logger logger = LoggerFactory.getLogger(BlockWalk.class);

    private final Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
    private final Visitor visitor;

    /** What is done with each block, once. */
    @FunctionalInterface
    public interface Visitor {

        /**
         * Visits a block.
         *
         * @param block the block
         * @param path where it is: children by name, fields after a dot
         * @param certain whether it is surely used: not in a field of a class that is not DJL's,
         *     where it may be there for something else
         */
        void visit(Block block, String path, boolean certain);
    }

    private BlockWalk(Visitor visitor) {
        this.visitor = visitor;
    }

    /**
     * Visits all blocks of a network.
     *
     * @param network the network
     * @param visitor what is done with each
     */
    public static void of(Block network, Visitor visitor) {
        new BlockWalk(visitor).visit(network, "", true);
    }

    /**
     * Returns what errors and counts call the blocks of a network: by their place in it.
     *
     * @param network the network
     * @return the path of each block, with its class where the path does not say it
     */
    public static Map<Block, String> namesOf(Block network) {
        Map<Block, String> names = new IdentityHashMap<>();
        of(network, (block, path, certain) -> names.put(block, name(block, path)));
        return Collections.unmodifiableMap(names);
    }

    private static String name(Block block, String path) {
        String type = block.getClass().getSimpleName();
        if (path.isEmpty()) {
            return type;
        }
        return path.contains(type) ? path : path + " (" + type + ")";
    }

    private void visit(@Nullable Object value, String path, boolean certain) {
        if (value == null || !isSearched(value) || !seen.add(value)) {
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
        visitor.visit(block, path, certain);
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

    /**
     * Reads a field, or returns null if that is not allowed.
     *
     * @param owner a block, or a function that a block has
     * @param field the field
     * @return its value, or {@code null}
     */
    public static @Nullable Object valueOf(Object owner, Field field) {
        try {
            field.setAccessible(true);
            return field.get(owner);
        } catch (IllegalAccessException | RuntimeException e) {
            // of a module that is closed to us
            logger.debug("{} cannot be read", field, e);
            return null;
        }
    }
}
