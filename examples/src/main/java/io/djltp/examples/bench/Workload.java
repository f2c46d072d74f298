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
 * @param tokens the tokens of a row, 1 where it is none of a sequence
 * @param heads the heads of an attention, 0 where there is none
 */
record Workload(Network network, int batch, int dim, int units, int tokens, int heads) {

    /** The networks that are measured. */
    enum Network {
        /** A large head on a body of one small layer. */
        HEAD,
        /** Blocks of two layers. */
        LAYER,
        /** A layer of a transformer's encoder. */
        TRANSFORMER,
        /** The lemmatiser. */
        STEP;

        /** Returns whether it has no head: its output is as wide as its input. */
        boolean isLayer() {
            return this == LAYER || this == TRANSFORMER;
        }
    }

    /** The blocks of two layers in {@link Network#LAYER}. */
    static final int BLOCKS = 4;

    private static final long OVERHEAD = 700_000_000; // of a JVM with libtorch and some buffers

    /** What is no sequence. */
    Workload(Network network, int batch, int dim, int units) {
        this(network, batch, dim, units, 1, 0);
    }

    /** Returns the sizes as they are given and shown. */
    String shape() {
        return batch + (heads == 0 ? "" : "x" + tokens) + "x" + dim + "x" + units;
    }

    /** Returns on how many ranks each of them has something to do. */
    int mostRanks() {
        int most = network == Network.STEP ? Math.min(batch, units) : units;
        return heads == 0 ? most : Math.min(heads, most);
    }

    /** Returns the parameters of the head or the layers. */
    private double parameters() {
        switch (network) {
            case LAYER:
                return 2.0 * BLOCKS * dim * units;
            case TRANSFORMER: // query, key, value and output; up and down
                return 4.0 * dim * dim + 2.0 * dim * units;
            default:
                return (double) dim * units;
        }
    }

    /**
     * Returns the operations that no step can do without: two for each parameter and row, in the
     * forward pass, for the gradient of the features, and for that of the weight; in an attention
     * as many for each two tokens of a row and feature, of the scores and of the weighted values.
     */
    double operations() {
        double pairs = heads == 0 ? 0 : 2.0 * tokens * tokens * dim;
        return 6.0 * batch * (tokens * parameters() + pairs);
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
        boolean fused = !network.isLayer() && head != HeadKind.FULL;
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
        // the logits, their softmax and its gradient, or what a layer keeps of its tokens
        double each = heads == 0 ? units : 2.0 * units + 10.0 * dim + (double) heads * tokens;
        return 3 * 4.0 * batch * tokens * each;
    }
}
