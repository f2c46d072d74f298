package io.djltp.checkpoint;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.RandomAccessDataset;
import ai.djl.training.dataset.Record;
import ai.djl.util.Progress;
import ai.djl.util.RandomUtils;

import java.util.concurrent.atomic.AtomicInteger;

/** Records that say how often one was read; each is its number, with noise if that is wanted. */
final class CountedRecords extends RandomAccessDataset {

    private final int records;
    private final boolean noise;
    private final AtomicInteger reads = new AtomicInteger();

    private CountedRecords(Builder builder) {
        super(builder);
        records = builder.records;
        noise = builder.noise;
    }

    static CountedRecords of(int records, int batch, boolean noise, int prefetch) {
        Builder builder = new Builder();
        builder.records = records;
        builder.noise = noise;
        return new CountedRecords(builder.setSampling(batch, true).optPrefetchNumber(prefetch));
    }

    int reads() {
        return reads.get();
    }

    @Override
    public Record get(NDManager manager, long index) {
        reads.incrementAndGet();
        float value = index + (noise ? RandomUtils.nextFloat() : 0);
        return new Record(
                new NDList(manager.create(new float[] {value})), new NDList(manager.create(index)));
    }

    @Override
    protected long availableSize() {
        return records;
    }

    @Override
    public void prepare(Progress progress) {
        // there is nothing to prepare
    }

    private static final class Builder extends BaseBuilder<Builder> {

        private int records;
        private boolean noise;

        @Override
        protected Builder self() {
            return this;
        }
    }
}
