package io.djltp.training;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.training.optimizer.Optimizer;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;

/**
 * The arrays that an optimizer of DJL keeps for each parameter, such as momentum. DJL keys them by
 * parameter and device, belongs them to no manager and never frees them: the trainer does.
 */
final class OptimizerState {

    private static final String STATE_TYPE =
            "Map<java.lang.String, java.util.Map<ai.djl.Device, ai.djl.ndarray.NDArray>>";

    private final Optimizer optimizer;

    OptimizerState(Optimizer optimizer) {
        this.optimizer = optimizer;
    }

    /**
     * Frees the state of some parameters.
     *
     * @param ids the keys under which {@link Optimizer#update} was called
     */
    void free(Collection<String> ids) {
        for (Map<String, Map<Device, NDArray>> states : stateMaps()) {
            for (String id : ids) {
                Map<Device, NDArray> state = states.remove(id);
                if (state != null) {
                    state.values().forEach(NDArray::close);
                }
            }
        }
    }

    /** DJL has no accessor for the state: its optimizers hold it in private fields of this type. */
    @SuppressWarnings("unchecked")
    private List<Map<String, Map<Device, NDArray>>> stateMaps() {
        List<Map<String, Map<Device, NDArray>>> maps = new ArrayList<>();
        for (Class<?> type = optimizer.getClass();
                type != Optimizer.class && type != null;
                type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getType() == Map.class
                        && field.getGenericType().getTypeName().endsWith(STATE_TYPE)
                        && field.trySetAccessible()) {
                    try {
                        maps.add((Map<String, Map<Device, NDArray>>) field.get(optimizer));
                    } catch (IllegalAccessException e) {
                        throw new IllegalStateException(e); // it was made accessible
                    }
                }
            }
        }
        return maps;
    }
}
