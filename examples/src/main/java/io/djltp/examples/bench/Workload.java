package io.djltp.examples.bench;

import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;

/**
 * What is trained in a step.
 *
 * @param network the network
 * @param batch the rows of a batch
 * @param dim the features of the head, or the width of the layers
 * @param units the classes of the head, or the hidden units of the layers
 */
record Workload(Network network, int batch, int dim, int units) {

    /** The networks that are measured. */
    enum Network {
        /** A large head on a body of one small layer. */
        HEAD,
        /** Blocks of two layers. */
        LAYER,
        /** The lemmatiser. */
        STEP
    }

    /** The blocks of two layers in {@link Network#LAYER}. */
    static final int BLOCKS = 4;

    private static final long OVERHEAD = 700_000_000; // of a JVM with libtorch and some buffers

    /** Returns the sizes as they are given and shown. */
    String shape() {
        return batch + "x" + dim + "x" + units;
    }

    /** Returns on how many ranks each of them has something to do. */
    int mostRanks() {
        return network == Network.STEP ? Math.min(batch, units) : units;
    }

    /** Returns the parameters of the head or the layers. */
    private double parameters() {
        return (network == Network.LAYER ? 2.0 * BLOCKS : 1.0) * dim * units;
    }

    /**
     * Returns the operations that no step can do without: two for each parameter and row, in the
     * forward pass, for the gradient of the features, and for that of the weight.
     */
    double operations() {
        return 6 * batch * parameters();
    }

    /**
     * Returns the bytes that no step can do without: the weight is read for the loss, and it and
     * the state of the optimizer are read and written for the update.
     */
    double leastBytes(OptimizerName optimizer) {
        return 4 * parameters() * (3 + 2 * optimizer.getStateArrays());
    }

    /** Returns the bytes of the weight and the state of the optimizer. */
    double stateBytes(OptimizerName optimizer) {
        return 4 * parameters() * (1 + optimizer.getStateArrays());
    }

    /** Returns about how much memory a process of this library takes, in bytes. */
    double oursBytes(OptimizerName optimizer, HeadKind head) {
        boolean fused = network != Network.LAYER && head != HeadKind.FULL;
        double most = stateBytes(optimizer) + OVERHEAD;
        return fused ? most : most + 8 * parameters() + logitBytes();
    }

    /** Returns about how much memory a process of stock DJL takes, in bytes. */
    double stockBytes(OptimizerName optimizer) {
        // the gradient, and what DJL's optimizers make of it: a clone, and for Adam three more
        int temporary = 2 + (optimizer.getStateArrays() == 2 ? 3 : 0);
        return stateBytes(optimizer) + OVERHEAD + 4 * temporary * parameters() + logitBytes();
    }

    private double logitBytes() {
        // the logits, their softmax and its gradient
        return 3 * 4.0 * batch * units;
    }
}
