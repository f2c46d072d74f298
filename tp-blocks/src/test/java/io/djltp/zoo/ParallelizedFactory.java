package io.djltp.zoo;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;

import io.djltp.plan.Plan;
import io.djltp.plan.Style;
import io.djltp.plan.TensorParallel;

import java.nio.file.Path;
import java.util.Map;

/** A network of DJL's own blocks that a plan makes parallel. */
public final class ParallelizedFactory extends ParallelBlockFactory {

    private static final long serialVersionUID = 1L;

    /** {@inheritDoc} */
    @Override
    protected Block newNetwork(Path folder, Map<String, ?> arguments) {
        Plan plan =
                Plan.builder().add("01Linear", Style.column()).add("03Linear", Style.row()).build();
        return TensorParallel.parallelize(plain(), plan);
    }

    /** {@inheritDoc} */
    @Override
    protected Shape[] getInputShapes(Map<String, ?> arguments) {
        return new Shape[] {TwoLayersFactory.INPUT};
    }

    static Block plain() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(13).build())
                .add(Activation.tanhBlock())
                .add(Linear.builder().setUnits(5).build());
    }
}
