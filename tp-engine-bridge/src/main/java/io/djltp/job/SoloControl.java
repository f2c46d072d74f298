package io.djltp.job;

import java.util.function.Supplier;

/** The control of a job of one process. */
final class SoloControl implements Control {

    private final JobState state;

    SoloControl(JobState state) {
        this.state = state;
    }

    /** {@inheritDoc} */
    @Override
    public byte[][] exchange(String what, byte[] mine) {
        return new byte[][] {mine};
    }

    /** {@inheritDoc} */
    @Override
    public void fail(JobFailedException failure) {
        state.fail(failure);
    }

    /** {@inheritDoc} */
    @Override
    public void setStatus(Supplier<String> status) {
        // nobody is there to be told
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        // nobody is there to be told
    }
}
