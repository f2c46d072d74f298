package io.djltp.internal.events;

import jdk.jfr.FlightRecorder;

/** Tells whether to make events for Java Flight Recorder. */
public final class FlightEvents {

    /** The category of all events. */
    static final String CATEGORY = "DJL Tensor Parallel";

    /** A Java runtime that was made by jlink may lack Flight Recorder. */
    private static final boolean PRESENT = ModuleLayer.boot().findModule("jdk.jfr").isPresent();

    private FlightEvents() {}

    /**
     * Returns whether a recording has been started since the JVM runs. Until then no class of an
     * event is loaded.
     *
     * @return whether to make events
     */
    public static boolean areUsed() {
        return PRESENT && FlightRecorder.isInitialized();
    }
}
