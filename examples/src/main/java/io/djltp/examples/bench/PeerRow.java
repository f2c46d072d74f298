package io.djltp.examples.bench;

import com.google.gson.annotations.SerializedName;

import io.djltp.torch.Precision;

/**
 * What one side needed, this library or a peer: all sides of a measurement have the same figures.
 */
final class PeerRow {

    String side;
    String shape;
    String optimizer;
    String precision = Precision.FLOAT32.toString(); // of the peers, and between ranks
    String ranks;

    /** The median. */
    @SerializedName("s")
    double seconds;

    /** The distance between the quartiles, divided by the median. */
    double spread;

    @SerializedName("rss_bytes")
    long bytes;

    /** The time as a multiple of this library's. */
    @SerializedName("of_ours")
    double ofOurs;

    static PeerRow of(Turns turns, int worker, int value, String side) {
        PeerRow row = new PeerRow();
        row.side = side;
        row.seconds = Samples.median(turns.values(worker, value));
        row.spread = Samples.spread(turns.values(worker, value));
        row.bytes = turns.process(worker).peakResident();
        return row;
    }
}
