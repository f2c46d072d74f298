package io.djltp.torch;

import com.sun.jna.Function;
import com.sun.jna.NativeLibrary;
import com.sun.jna.Platform;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.Map;

/**
 * Settings of glibc's allocator, for programs that do little else than to compute with arrays. By
 * default it gives large arrays back to the system as soon as they are freed and gets fresh pages
 * for the next one, each of which the system clears when it is first touched: that takes longer
 * than most arithmetic on them.
 *
 * <p>The settings are those of the whole process. Nothing in the library makes them: a program that
 * wants them calls {@link #keepFreedArrays()}, as the {@code tp} command does.
 */
public final class NativeAllocator {

    /** The system property that leaves the settings alone when it is {@code default}. */
    public static final String PROPERTY = "io.djltp.allocator";

    private static final Logger logger = LoggerFactory.getLogger(NativeAllocator.class);

    // from malloc.h
    private static final int M_TRIM_THRESHOLD = -1;
    private static final int M_TOP_PAD = -2;
    private static final int M_MMAP_THRESHOLD = -3;
    private static final int M_ARENA_MAX = -8;

    /** Larger arrays are still given back: kept, they would leave holes of their size. */
    private static final int LARGEST_KEPT = 256 << 20;

    /**
     * The memory of all arenas but the first comes in segments of so many bytes. One that has
     * become empty is given back, whatever the limit above, unless as much is to be left over; what
     * is left over and never touched takes no memory.
     */
    private static final int SEGMENT = 64 << 20;

    private NativeAllocator() {}

    /**
     * Lets freed arrays of up to 256 MiB be used again by this process, instead of giving them back
     * to the system. To be called once, at the start of a program, before it computes.
     *
     * <p>In a thread to which glibc gives another arena than the first, these are arrays of up to
     * 64 MiB, which is decided where the process has threads already, as Java has. The variable
     * {@code MALLOC_ARENA_MAX=1} leaves one arena, if {@code MALLOC_MMAP_THRESHOLD_=268435456} and
     * {@code MALLOC_TRIM_THRESHOLD_=16000000000} are set with it: this method then does nothing.
     *
     * <p>Does nothing where the user has decided otherwise: by a variable {@code MALLOC_...}, a
     * tunable {@code glibc.malloc} of {@code GLIBC_TUNABLES}, another allocator in {@code
     * LD_PRELOAD}, or {@code -Dio.djltp.allocator=default}. Nor does it outside of Linux, or where
     * the C library is not glibc.
     */
    public static void keepFreedArrays() {
        if (!Platform.isLinux() || isDecided(System.getenv())) {
            return;
        }
        try {
            Function mallopt = NativeLibrary.getInstance("c").getFunction("mallopt");
            set(mallopt, M_MMAP_THRESHOLD, LARGEST_KEPT);
            set(mallopt, M_TRIM_THRESHOLD, Integer.MAX_VALUE);
            set(mallopt, M_TOP_PAD, SEGMENT);
            // an arena of its own for each thread would keep as much again
            set(mallopt, M_ARENA_MAX, 1);
        } catch (UnsatisfiedLinkError e) {
            logger.debug("This C library has no mallopt: its settings stay", e);
        }
    }

    static boolean isDecided(Map<String, String> environment) {
        return "default".equals(System.getProperty(PROPERTY))
                || environment.containsKey("LD_PRELOAD") // perhaps another allocator
                || environment.getOrDefault("GLIBC_TUNABLES", "").contains("glibc.malloc")
                || environment.keySet().stream().anyMatch(key -> key.startsWith("MALLOC_"));
    }

    private static void set(Function mallopt, int parameter, int value) {
        if (mallopt.invokeInt(new Object[] {parameter, value}) != 1) {
            logger.debug("mallopt({}, {}) has failed", parameter, value);
        }
    }
}
