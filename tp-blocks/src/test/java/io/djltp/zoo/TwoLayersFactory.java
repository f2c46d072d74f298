package io.djltp.zoo;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.translate.ArgumentsUtil;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;

import java.nio.file.Path;
import java.util.Map;

/** A network of two layers that are cut, 7 to 13 to 5 features. */
public final class TwoLayersFactory extends ParallelBlockFactory {

    private static final long serialVersionUID = 1L;

    static final Shape INPUT = new Shape(1, 7);

    /** {@inheritDoc} */
    @Override
    protected Block newNetwork(Path folder, Map<String, ?> arguments) {
        return network(ArgumentsUtil.intValue(arguments, "hidden", 13));
    }

    /** {@inheritDoc} */
    @Override
    protected Shape[] getInputShapes(Map<String, ?> arguments) {
        return new Shape[] {INPUT};
    }

    static Block network(int hidden) {
        return new SequentialBlock()
                .add(ColumnParallelLinear.builder().setUnits(hidden).build())
                .add(Activation.tanhBlock())
                .add(RowParallelLinear.builder().setUnits(5).build());
    }
}
