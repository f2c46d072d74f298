package io.djltp.examples.bench;

import com.google.gson.annotations.SerializedName;

import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** What was measured of a job of many members. */
final class ControlPlaneRow {

    int members;
    int processes;

    /** From the order to join until the last member had joined. */
    @SerializedName("join_s")
    double joinSeconds;

    /** From the order until the last member had the messages of all. */
    @SerializedName("exchange_s")
    double exchangeSeconds;

    /** The same of the first all-reduce, connections included, or 0. */
    @SerializedName("reduce_s")
    double reduceSeconds;

    /** From the death until the last member knew of it, or 0. */
    @SerializedName("known_s")
    double knownSeconds;

    @SerializedName("member_heap_bytes")
    double memberHeap;

    @SerializedName("member_anonymous_bytes")
    double memberAnonymous;

    @SerializedName("member_threads")
    double memberThreads;

    @SerializedName("master_heap_bytes")
    double masterHeap;

    @SerializedName("master_anonymous_bytes")
    double masterAnonymous;

    @SerializedName("master_threads")
    double masterThreads;

    /** Processor time of the master in a second in which nothing happens. */
    @SerializedName("master_cpu")
    double masterCpu;

    /** Packets and bytes of all members, by what they were sent for. */
    final Map<String, LoopbackTraffic> traffic = new TreeMap<>();

    @SerializedName("idle_s")
    double idleSeconds;

    /** All that the members were told of the failure. */
    Set<String> errors = Set.of();
}
