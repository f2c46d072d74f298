package io.djltp.examples.bench;

/** Something that is done again and again, and takes its own time. */
interface Measured extends AutoCloseable {

    /**
     * Does it once.
     *
     * @return what was measured, always as many values in the same order
     */
    double[] step();

    /** {@inheritDoc} */
    @Override
    void close();
}
