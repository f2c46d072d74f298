package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.OptimizerName;

import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/**
 * What is trained in a step.
 *
 * @param network the network
 * @param batch the rows of a batch, or the weights of an update
 * @param dim the features of the head, the width of the layers, or the columns of a weight
 * @param units the classes of the head, the hidden units of the layers, or the rows of a weight
 * @param tokens the tokens of a row, 1 where it is none of a sequence
 * @param heads the heads of an attention, 0 where there is none
 * @param loss the loss of a head
 */
record Workload(
        Network network, int batch, int dim, int units, int tokens, int heads, LossKind loss) {

    /** The losses of a head. */
    enum LossKind {
        /** The softmax cross entropy. */
        SOFTMAX,
        /** The binary cross entropy of each class, the weight updated in the loss. */
        ONE_VS_ALL;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT).replace('_', '-');
        }
    }

    /** The networks that are measured. */
    enum Network {
        /** A large head on a body of one small layer. */
        HEAD("head.py", "64x128x1000000", "256x128x500000"),
        /** Blocks of two layers. */
        LAYER("layer.py", "256x1024x4096"),
        /** A layer of a transformer's encoder. */
        TRANSFORMER("transformer.py", "8x128x768x3072"),
        /** The lemmatiser. */
        STEP(null, "256x64x120658", "256x64x1015603"),
        /** Many small layers, whose update alone is measured. */
        UPDATE("update.py", "500x64x64");

        /** The script of PyTorch's side, or {@code null}. */
        final @Nullable String script;

        /** What is measured if nothing is said. */
        final List<String> shapes;

        Network(@Nullable String script, String... shapes) {
            this.script = script;
            this.shapes = List.of(shapes);
        }

        /** Returns whether its last layer is a head, which ranks cut by classes. */
        boolean hasHead() {
            return this == HEAD || this == STEP;
        }

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** The blocks of two layers in {@link Network#LAYER}. */
    static final int BLOCKS = 4;

    /** Reads a shape, such as {@code 64x128x1000000}. */
    static Workload parse(Network network, String shape, int heads) {
        boolean sequence = network == Network.TRANSFORMER;
        String text = sequence ? shape : shape.replaceFirst("x", "x1x"); // one token
        if (!text.matches("[1-9]\\d{0,9}(x[1-9]\\d{0,9}){3}")) {
            throw new BadInputException(
                    "--shapes: '%s' is not such as %s", shape, network.shapes.get(0));
        }
        int[] sizes = Arrays.stream(text.split("x")).mapToInt(Integer::parseInt).toArray();
        if (sequence && (heads < 1 || sizes[2] % heads != 0)) {
            throw new BadInputException(
                    "The width %d cannot be divided into --heads %d", sizes[2], heads);
        }
        return new Workload(
                network,
                sizes[0],
                sizes[2],
                sizes[3],
                sizes[1],
                sequence ? heads : 0,
                LossKind.SOFTMAX);
    }

    /** Returns the width of the output. */
    int outputs() {
        return network.hasHead() || network == Network.UPDATE ? units : dim;
    }

    boolean isOneVsAll() {
        return loss == LossKind.ONE_VS_ALL;
    }

    /** Returns the same with another loss. */
    Workload with(LossKind other) {
        return new Workload(network, batch, dim, units, tokens, heads, other);
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
            case UPDATE:
                return (double) batch * dim * units;
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
     * An update moves bytes and computes next to nothing.
     */
    double operations() {
        if (network == Network.UPDATE) {
            return 0;
        }
        double pairs = heads == 0 ? 0 : 2.0 * tokens * tokens * dim;
        return 6.0 * batch * (tokens * parameters() + pairs);
    }

    /**
     * Returns the bytes that no step can do without: the weight is read for the loss, and it and
     * the state of the optimizer are read and written for the update. With a one-vs-all loss the
     * weight is read once for both. An update alone reads the gradient instead.
     */
    double leastBytes(OptimizerName optimizer) {
        int ofWeight = isOneVsAll() ? 2 : 3;
        return 4 * parameters() * (ofWeight + 2 * optimizer.getStateArrays());
    }
}
