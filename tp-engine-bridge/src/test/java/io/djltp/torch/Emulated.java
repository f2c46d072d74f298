package io.djltp.torch;

import ai.djl.Device;

/** Lets the processor compute with arithmetic of GPUs, for tests of what is done with it. */
public final class Emulated implements AutoCloseable {

    private final Precision precision;

    /** Allows a precision until this is closed. */
    public Emulated(Precision precision) {
        this.precision = precision;
        precision.allow(Device.cpu());
    }

    @Override
    public void close() {
        precision.forget(Device.cpu());
    }
}
