package io.djltp.examples.bench;

import com.google.gson.annotations.SerializedName;

import java.util.List;

/**
 * One line of the table, as {@code --json} writes it. What was not measured is missing there. Times
 * are medians in seconds, memory is the peak of the process that measured one side.
 */
final class BenchRow {

    String name;
    String shape;
    int ranks;
    String optimizer;
    String precision;

    @SerializedName("ours_s")
    double oursSeconds;

    @SerializedName("stock_s")
    Double stockSeconds;

    @SerializedName("floor_s")
    double floorSeconds;

    @SerializedName("ours_rss_bytes")
    long oursBytes;

    @SerializedName("stock_rss_bytes")
    Long stockBytes;

    /** The distance between the quartiles of our times, divided by their median. */
    double spread;

    /** All sides, if there are others than this library and stock DJL. */
    List<PeerRow> peers;

    transient Workload workload;
    transient int threads;
    transient double ofOneRank; // our time as a multiple of that on one rank, or NaN
    transient double weightsAndState; // in bytes
}
