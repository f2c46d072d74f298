package io.djltp.nn;

import ai.djl.MalformedModelException;

import io.djltp.head.Margin;

import org.jspecify.annotations.Nullable;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;

/**
 * The margin of a head in a saved model: before what a linear layer saves, with a version that
 * DJL's layers refuse, as their logits of such a weight would be wrong.
 */
final class SavedMargin {

    /** The version of a layer with a margin: DJL's {@code Linear} has 1 to 4. */
    static final byte VERSION = 101;

    private static final byte FORMAT = 1;

    private SavedMargin() {}

    /** Returns the version that a layer saves. */
    static byte versionOf(@Nullable Margin margin, byte linearVersion) {
        return margin == null ? linearVersion : VERSION;
    }

    /** Writes a margin, and the version of what the linear layer writes after it. */
    static void write(Margin margin, byte linearVersion, DataOutputStream os) throws IOException {
        os.writeByte(FORMAT);
        os.writeFloat(margin.scale());
        os.writeFloat(margin.m1());
        os.writeFloat(margin.m2());
        os.writeFloat(margin.m3());
        os.writeByte(linearVersion);
    }

    /** Reads a margin. The version of the linear layer follows. */
    static Margin read(DataInputStream is) throws IOException, MalformedModelException {
        byte format = is.readByte();
        if (format != FORMAT) {
            throw new MalformedModelException(
                    "The margin of the saved head has format "
                            + format
                            + ", and this version of the library reads "
                            + FORMAT);
        }
        try {
            return new Margin(is.readFloat(), is.readFloat(), is.readFloat(), is.readFloat());
        } catch (IllegalArgumentException e) {
            throw new MalformedModelException("The margin of the saved head is damaged", e);
        }
    }

    /** Refuses what a head with a margin has saved, in a layer that has none. */
    static void refuse(byte version, String layer) throws MalformedModelException {
        if (version == VERSION) {
            throw new MalformedModelException(
                    "What was saved is a ClassificationHead with a margin, whose logits are scaled"
                            + " cosines, and a "
                            + layer
                            + " computes others: load it into a ClassificationHead, built with"
                            + " optBias(false)");
        }
    }

    /** Checks that a head can take a margin that was saved. */
    static void check(Margin saved, @Nullable Margin built, boolean withBias, boolean fusedLoss)
            throws MalformedModelException {
        if (built != null && !built.equals(saved)) {
            throw refusal(saved, "optMargin(" + built + ")", "leave optMargin out, to take it");
        }
        if (withBias) {
            throw refusal(saved, "a bias", "a cosine has none: set optBias(false)");
        }
        if (!fusedLoss) {
            throw refusal(saved, "optFusedLoss(false)", "leave that out");
        }
    }

    private static MalformedModelException refusal(Margin saved, String built, String remedy) {
        return new MalformedModelException(
                ("The head was saved with %s, and the ClassificationHead that loads it is"
                                + " built with %s: %s")
                        .formatted(saved, built, remedy));
    }
}
