package io.djltp.sharding;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;

/** Gives every rank all of it. */
final class Replicate extends ShardingStrategy {

    static final ShardingStrategy INSTANCE = new Replicate();

    /** {@inheritDoc} */
    @Override
    public boolean isReplicated() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    public int axis(Shape shape) {
        return 0;
    }

    /** {@inheritDoc} */
    @Override
    public Cut cut(Shape shape, int size) {
        return Cut.replicated(shape.get(0), size);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "replicate";
    }
}
