package io.djltp.plan;

import ai.djl.nn.Block;

import org.jspecify.annotations.Nullable;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;

/**
 * The state that blocks keep in private fields. A block that replaces another one gets it: the same
 * parameters, whether they have values or not, their initializers, and the shapes of the inputs if
 * the block is initialized.
 */
final class PrivateFields {

    private PrivateFields() {}

    /**
     * Gives a block the state of another one.
     *
     * @param from a block
     * @param to another one
     * @param type a class that both extend; its fields and those above are copied
     * @param <T> the class of the other block
     * @return {@code to}
     */
    static <T extends Block> T copy(Block from, T to, Class<?> type) {
        for (Class<?> at = type; at != null; at = at.getSuperclass()) {
            for (Field field : at.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers())) {
                    write(to, field, read(from, field));
                }
            }
        }
        return to;
    }

    /** Reads a private field of one of DJL's classes. */
    @SuppressWarnings("unchecked") // the caller knows the type of DJL's field
    static <T> T read(Block block, Class<?> type, String name) {
        return (T) read(block, field(type, name));
    }

    /** Writes a private field of one of DJL's classes. */
    static void write(Block block, Class<?> type, String name, @Nullable Object value) {
        write(block, field(type, name), value);
    }

    /**
     * Sets a field, final or not.
     *
     * @throws IllegalStateException if Java does not allow it
     */
    static void write(Object owner, Field field, @Nullable Object value) {
        try {
            field.setAccessible(true);
            field.set(owner, value);
        } catch (IllegalAccessException | RuntimeException e) {
            throw new IllegalStateException(
                    "Java does not let " + describe(field) + " be set: " + e.getMessage(), e);
        }
    }

    /** Returns what errors call a field. */
    static String describe(Field field) {
        return "the field " + field.getDeclaringClass().getName() + "." + field.getName();
    }

    private static Object read(Block block, Field field) {
        try {
            field.setAccessible(true);
            return field.get(block);
        } catch (IllegalAccessException | RuntimeException e) {
            throw new IllegalStateException(
                    "Java does not let " + describe(field) + " be read: " + e.getMessage(), e);
        }
    }

    private static Field field(Class<?> type, String name) {
        try {
            return type.getDeclaredField(name);
        } catch (NoSuchFieldException e) {
            throw new IllegalStateException(
                    type.getName() + " of this version of DJL has no field " + name, e);
        }
    }
}
