package io.djltp.plan;

import ai.djl.nn.Block;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;

/** A field of a block, or of a function that a block has, that holds a block. */
record FieldSlot(Object owner, Field field) implements BlockSlot {

    /** {@inheritDoc} */
    @Override
    public void check(Class<? extends Block> type, String path) {
        if (!field.getType().isAssignableFrom(type)) {
            throw BlockSlot.refusal(
                    type,
                    path,
                    describe(field)
                            + " holds a "
                            + field.getType().getSimpleName()
                            + " and nothing else. Declare it as a Block, or leave the block whole");
        }
        Class<?> declaring = field.getDeclaringClass();
        boolean fixed = declaring.isHidden() || declaring.isRecord();
        if (fixed && Modifier.isFinal(field.getModifiers())) {
            throw BlockSlot.refusal(
                    type,
                    path,
                    describe(field)
                            + " belongs to a "
                            + (declaring.isRecord() ? "record" : "lambda")
                            + ", whose fields Java does not let change. Hold the block in a field"
                            + " of a class, or leave it whole");
        }
    }

    /** {@inheritDoc} */
    @Override
    public void set(Block replacement) {
        write(owner, field, replacement);
    }

    /** Returns what errors call a field. */
    static String describe(Field field) {
        return "the field " + field.getDeclaringClass().getName() + "." + field.getName();
    }

    /**
     * Sets a field, final or not.
     *
     * @throws IllegalStateException if Java does not allow it
     */
    static void write(Object owner, Field field, Object value) {
        try {
            field.setAccessible(true);
            field.set(owner, value);
        } catch (IllegalAccessException | RuntimeException e) {
            throw new IllegalStateException(
                    "Java does not let " + describe(field) + " be set: " + e.getMessage(), e);
        }
    }
}
