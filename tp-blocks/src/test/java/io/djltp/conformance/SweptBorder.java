package io.djltp.conformance;

import ai.djl.nn.Block;

import io.djltp.nn.SequenceGather;
import io.djltp.nn.SequenceScatter;

/** The way into sequence parallelism, or out of it. */
record SweptBorder(long outputs, boolean in) implements SweptPart {

    @Override
    public Block create(boolean cut) {
        return in ? new SequenceScatter() : new SequenceGather();
    }
}
