package io.djltp.plan;

import ai.djl.nn.Block;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;

/**
 * The state that DJL's classes keep in private fields. A block that takes another one's place gets
 * it: the same parameters, whether they have values or not, their initializers, and the shapes of
 * the inputs if it is initialized.
 */
final class BlockState {

    private BlockState() {}

    /**
     * Gives a block the state of another one.
     *
     * @param from a block
     * @param to another one
     * @param type a class that both extend; its fields and those above are copied
     * @param <T> the block that gets it
     * @return the block that has got it
     */
    static <T extends Block> T copy(Block from, T to, Class<?> type) {
        for (Class<?> at = type; at != null; at = at.getSuperclass()) {
            for (Field field : at.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers())) {
                    FieldSlot.write(to, field, read(from, field));
                }
            }
        }
        return to;
    }

    /** Reads a private field of one of DJL's classes. */
    static Object read(Block block, Class<?> type, String name) {
        return read(block, field(type, name));
    }

    /** Writes a private field of one of DJL's classes. */
    static void write(Block block, Class<?> type, String name, Object value) {
        FieldSlot.write(block, field(type, name), value);
    }

    private static Object read(Block block, Field field) {
        try {
            field.setAccessible(true);
            return field.get(block);
        } catch (IllegalAccessException | RuntimeException e) {
            throw new IllegalStateException(
                    "Java does not let "
                            + FieldSlot.describe(field)
                            + " be read: "
                            + e.getMessage(),
                    e);
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
