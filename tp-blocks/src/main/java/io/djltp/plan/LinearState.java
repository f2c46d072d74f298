package io.djltp.plan;

import ai.djl.nn.Block;
import ai.djl.nn.core.Linear;

import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;

import java.util.Set;

/** What DJL's {@link Linear} is made of, and the parallel layers that take its place. */
final class LinearState {

    private static final Set<Class<?>> PARALLEL =
            Set.of(ColumnParallelLinear.class, RowParallelLinear.class, ClassificationHead.class);

    private LinearState() {}

    /** Returns whether a block is DJL's own layer, not one that overrides it. */
    static boolean isPlain(Block block) {
        return block.getClass() == Linear.class;
    }

    /** Returns whether a block is one of the layers that a plan makes. */
    static boolean isParallel(Block block) {
        return PARALLEL.contains(block.getClass());
    }

    static long units(Block linear) {
        return (Long) BlockState.read(linear, Linear.class, "units");
    }

    static boolean hasBias(Block linear) {
        return linear.getDirectParameters().get("bias") != null;
    }

    /** Gives a layer the parameters of another one, and the shapes that it is initialized for. */
    static <T extends Linear> T move(Block from, T to) {
        return BlockState.copy(from, to, Linear.class);
    }

    /** Returns the plain layer of a parallel one. */
    static Linear plain(Block parallel) {
        Linear.Builder builder = Linear.builder().setUnits(units(parallel));
        return move(parallel, builder.optBias(hasBias(parallel)).build());
    }
}
