package io.djltp.torch;

import ai.djl.Device;

/** Lets the processor compute with arithmetic of GPUs, which libtorch emulates, for tests of it. */
public final class AllowedPrecision implements AutoCloseable {

    private final Precision precision;

    /** Allows a precision until this is closed. */
    public AllowedPrecision(Precision precision) {
        this.precision = precision;
        precision.allow(Device.cpu());
    }

    @Override
    public void close() {
        precision.forget(Device.cpu());
    }
}
