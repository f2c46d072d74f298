package io.djltp.internal.gradient;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.FlatGradients;

/**
 * The sum of a bucket's gradients over other ranks, by one all-reduce: of copies in memory that is
 * kept from step to step, or of one gradient where it is.
 */
final class BucketSum implements AutoCloseable {

    private final FlatGradients flat; // or null: one gradient that travels as it is
    private NDArray alone; // while it travels
    private Work work = Work.DONE;

    /**
     * Creates the sum.
     *
     * @param flat the memory of the copies, closed with this, or {@code null}
     */
    BucketSum(FlatGradients flat) {
        this.flat = flat;
    }

    /** Returns the memory of the copies, or {@code null} if the gradient is summed where it is. */
    FlatGradients flat() {
        return flat;
    }

    /** Begins to sum the copies. */
    void start(Communicator group, String issuer) {
        start(flat.getAll(), group, issuer);
    }

    /**
     * Begins to sum a gradient where it is.
     *
     * @param gradient the gradient, closed by {@link #releaseAlone()}
     * @param group the ranks that it is summed over
     * @param issuer what errors call it
     */
    void start(NDArray gradient, Communicator group, String issuer) {
        alone = gradient;
        start(TensorView.of(alone), group, issuer);
    }

    private void start(TensorView summed, Communicator group, String issuer) {
        group.setIssuer(issuer);
        work = group.allReduce(summed, ReduceOp.SUM);
    }

    /** Waits for the sum. */
    void await() {
        work.await();
        work = Work.DONE;
    }

    /** Returns the sum of a gradient; of one that is alone until {@link #releaseAlone()}. */
    NDArray get(int number) {
        return flat == null ? alone : flat.get(number);
    }

    /** Frees the gradient that is not in the memory of the bucket. */
    void releaseAlone() {
        if (alone != null) {
            alone.close();
            alone = null;
        }
    }

    /** Frees the memory that is kept. */
    @Override
    public void close() {
        releaseAlone();
        if (flat != null) {
            flat.close();
        }
    }
}
