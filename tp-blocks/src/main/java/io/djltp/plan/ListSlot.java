package io.djltp.plan;

import ai.djl.nn.Block;

import java.lang.reflect.Field;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.util.List;

/** An element of a list, such as DJL's list of children or a list in a field. */
record ListSlot<T>(List<T> list, int index, Field field) implements BlockSlot {

    /**
     * Creates a slot.
     *
     * @param list the list
     * @param index which element
     * @param field the field that holds the list, or {@code null}: it may hold any block
     */
    ListSlot {}

    /** {@inheritDoc} */
    @Override
    public void check(Class<? extends Block> type, String path) {
        ElementType.check(field, type, path);
        try {
            list.set(index, list.get(index));
        } catch (UnsupportedOperationException e) {
            throw (IllegalArgumentException)
                    BlockSlot.refusal(
                                    type,
                                    path,
                                    "it is in a list that cannot be changed, in "
                                            + (field == null
                                                    ? list.getClass().getName()
                                                    : FieldSlot.describe(field))
                                            + ". Use an ArrayList, or leave the block whole")
                            .initCause(e);
        }
    }

    /** {@inheritDoc} */
    @Override
    @SuppressWarnings("unchecked") // checked before, as far as Java knows what the list is of
    public void set(Block replacement) {
        list.set(index, (T) replacement);
    }

    /** What Java knows of the elements of a collection: the last type argument of its field. */
    static final class ElementType {

        private ElementType() {}

        /** Refuses an element of another class than the field says. */
        static void check(Field field, Class<? extends Block> type, String path) {
            if (field == null || !(field.getGenericType() instanceof ParameterizedType)) {
                return;
            }
            Type[] arguments =
                    ((ParameterizedType) field.getGenericType()).getActualTypeArguments();
            Type last = arguments[arguments.length - 1];
            if (last instanceof Class && !((Class<?>) last).isAssignableFrom(type)) {
                throw BlockSlot.refusal(
                        type,
                        path,
                        FieldSlot.describe(field)
                                + " holds elements of "
                                + ((Class<?>) last).getSimpleName()
                                + " and nothing else. Declare them as blocks, or leave the block"
                                + " whole");
            }
        }
    }
}
