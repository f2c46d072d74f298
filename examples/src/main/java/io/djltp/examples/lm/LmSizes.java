package io.djltp.examples.lm;

import static io.djltp.examples.train.DeviceOptions.positive;

import io.djltp.examples.BadInputException;
import io.djltp.torch.LinearProduct;
import io.djltp.torch.Precision;

import picocli.CommandLine.Option;

/** The sizes of the model, as options. */
public final class LmSizes {

    private static final int MULTIPLE = 8; // of the hidden features

    @Option(
            names = "--layers",
            defaultValue = "4",
            description = "Layers of the transformer (${DEFAULT-VALUE}).")
    int layers;

    @Option(
            names = "--width",
            defaultValue = "128",
            description = "Features of a character (${DEFAULT-VALUE}).")
    int width;

    @Option(
            names = "--heads",
            defaultValue = "8",
            description =
                    "Query heads of a layer, each of width/heads features (${DEFAULT-VALUE}).")
    int heads;

    @Option(
            names = "--kv-heads",
            description =
                    "Key/value heads of a layer, each for as many query heads (half of --heads, or"
                            + " 1 if that is odd).")
    Integer keyValueHeads;

    @Option(
            names = "--context",
            defaultValue = "128",
            description = "Characters that the model sees at a time (${DEFAULT-VALUE}).")
    int context;

    @Option(
            names = "--precision",
            defaultValue = "float32",
            description =
                    "Arithmetic of the products of all layers: float32, or bfloat16 where the"
                            + " processor or the GPU has it (${DEFAULT-VALUE}). Weights, sums and"
                            + " the update are float32 in both.")
    Precision precision = Precision.FLOAT32;

    /** Creates the sizes; they are set by the command line. */
    public LmSizes() {}

    /** Refuses sizes that do not fit each other. */
    public void check() {
        positive("--layers", layers);
        positive("--width", width);
        positive("--heads", heads);
        positive("--context", context);
        positive("--kv-heads", keyValueHeads());
        checkPrecision();
        if (width % (2 * heads) != 0) {
            throw new BadInputException(
                    "--width "
                            + width
                            + " does not give each of the "
                            + heads
                            + " heads the same, even number of features, which rotary positions"
                            + " turn in pairs: use a multiple of "
                            + 2 * heads
                            + ", or other --heads");
        }
        if (heads % keyValueHeads() != 0) {
            throw new BadInputException(
                    "--kv-heads "
                            + keyValueHeads
                            + " cannot be shared evenly by "
                            + heads
                            + " query heads: use a divisor of "
                            + heads);
        }
    }

    private void checkPrecision() {
        try {
            new LinearProduct(precision);
        } catch (IllegalArgumentException e) {
            throw new BadInputException("--precision " + precision + ": " + e.getMessage(), e);
        }
    }

    int keyValueHeads() {
        return keyValueHeads != null ? keyValueHeads : heads % 2 == 0 ? heads / 2 : 1;
    }

    /** Returns the hidden features of a gated MLP that is as large as one of 4 width without. */
    int hidden() {
        return (8 * width / 3 + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return layers
                + " layers of "
                + width
                + " features, "
                + heads
                + " heads, "
                + keyValueHeads()
                + " key/value heads, "
                + hidden()
                + " hidden features, "
                + context
                + " characters at a time";
    }
}
