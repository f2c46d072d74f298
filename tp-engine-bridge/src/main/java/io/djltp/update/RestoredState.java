package io.djltp.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;

import io.djltp.torch.TensorView;

import org.bytedeco.pytorch.Tensor;

import java.util.Map;
import java.util.TreeSet;

/** The state of an update that is put back. */
final class RestoredState {

    private RestoredState() {}

    /**
     * Returns the type of a state.
     *
     * @param name the name of the weight, for errors
     * @param values the state
     * @param weight the type of the weight
     * @return float32, or float64
     * @throws IllegalArgumentException if it is another one, or float64 for another weight
     */
    static DataType typeOf(String name, Map<String, NDArray> values, DataType weight) {
        DataType type = values.values().iterator().next().getDataType();
        for (Map.Entry<String, NDArray> value : values.entrySet()) {
            DataType each = value.getValue().getDataType();
            boolean known =
                    each == DataType.FLOAT32
                            || each == DataType.FLOAT64 && weight == DataType.FLOAT64;
            if (!known || each != type) {
                throw new IllegalArgumentException(
                        "The state of parameter "
                                + name
                                + " is kept in float32, or in float64 if the parameter is in"
                                + " float64, but "
                                + value.getKey()
                                + " is in "
                                + each
                                + " and the parameter in "
                                + weight);
            }
        }
        return type;
    }

    /**
     * Copies a state.
     *
     * @param name the name of the weight, for errors
     * @param values the state
     * @param targets where it goes, by its names
     * @throws IllegalArgumentException if the names or the shapes differ
     */
    static void copy(String name, Map<String, NDArray> values, Map<String, Tensor> targets) {
        if (!values.keySet().equals(targets.keySet())) {
            throw new IllegalArgumentException(
                    "The optimizer keeps "
                            + (targets.isEmpty() ? "no state" : new TreeSet<>(targets.keySet()))
                            + " of parameter "
                            + name
                            + ", but "
                            + new TreeSet<>(values.keySet())
                            + " is to be set: it is the state of another optimizer");
        }
        values.forEach(
                (kind, value) -> {
                    TensorView target = TensorView.of(targets.get(kind));
                    if (!value.getShape().equals(target.getShape())) {
                        throw new IllegalArgumentException(
                                "The state "
                                        + kind
                                        + " of parameter "
                                        + name
                                        + " has the shape "
                                        + target.getShape()
                                        + " on this rank, but "
                                        + value.getShape()
                                        + " is to be set: give each rank the state of its shard");
                    }
                });
        values.forEach((kind, value) -> targets.get(kind).copy_(TensorView.of(value).tensor()));
    }
}
