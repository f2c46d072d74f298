package io.djltp.spark;

import org.apache.spark.util.AccumulatorV2;

/** The last words of a task, which travel to the driver with Spark's heartbeats. */
final class Progress extends AccumulatorV2<String, String> {

    private static final long serialVersionUID = 1L;

    private volatile String text;

    Progress() {
        this("");
    }

    private Progress(String text) {
        this.text = text;
    }

    /** {@inheritDoc} */
    @Override
    public boolean isZero() {
        return text.isEmpty();
    }

    /** {@inheritDoc} */
    @Override
    public AccumulatorV2<String, String> copy() {
        return new Progress(text);
    }

    /** {@inheritDoc} */
    @Override
    public void reset() {
        text = "";
    }

    /** {@inheritDoc} */
    @Override
    public void add(String words) {
        text = words;
    }

    /** {@inheritDoc} */
    @Override
    public void merge(AccumulatorV2<String, String> other) {
        if (!other.isZero()) {
            text = other.value();
        }
    }

    /** {@inheritDoc} */
    @Override
    public String value() {
        return text;
    }
}
