package io.djltp.plan;

import ai.djl.nn.Block;

import java.lang.reflect.Field;
import java.util.Map;

/** A value of a map in a field of a block. */
record MapSlot(Map<?, ?> map, Object key, Field field) implements BlockSlot {

    /** {@inheritDoc} */
    @Override
    public void check(Class<? extends Block> type, String path) {
        ListSlot.ElementType.check(field, type, path);
        try {
            put(map, map.get(key));
        } catch (UnsupportedOperationException e) {
            throw (IllegalArgumentException)
                    BlockSlot.refusal(
                                    type,
                                    path,
                                    "it is in a map that cannot be changed, in "
                                            + (field == null
                                                    ? map.getClass().getName()
                                                    : FieldSlot.describe(field))
                                            + ". Use a LinkedHashMap, or leave the block whole")
                            .initCause(e);
        }
    }

    /** {@inheritDoc} */
    @Override
    public void set(Block replacement) {
        put(map, replacement);
    }

    @SuppressWarnings("unchecked") // checked before, as far as Java knows what the map is of
    private <K> void put(Map<K, ?> any, Object value) {
        ((Map<Object, Object>) any).put(key, value);
    }
}
