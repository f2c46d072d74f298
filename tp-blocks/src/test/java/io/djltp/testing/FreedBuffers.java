package io.djltp.testing;

import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.lang.ref.Reference;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;

/** Direct buffers that nothing refers to: what they held is overwritten at once, not some day. */
public final class FreedBuffers {

    private static final int OTHERS = 2000;
    private static final int QUIET = 3;
    private static final long LONGEST_MILLIS = 10_000;

    private FreedBuffers() {}

    /** Lets the collector free all of them, and other buffers take their place. */
    public static void overwrite() {
        collect();
        List<ByteBuffer> others = new ArrayList<>(OTHERS);
        for (int i = 0; i < OTHERS; i++) {
            ByteBuffer other = ByteBuffer.allocateDirect(4).order(ByteOrder.nativeOrder());
            other.putFloat(0, 1234.5f);
            others.add(other);
        }
        others.clear();
    }

    /**
     * Lets the collector free all of them.
     *
     * @return the number of direct buffers that are left
     */
    public static long collect() {
        Reference<ByteBuffer> last = new WeakReference<>(ByteBuffer.allocateDirect(4));
        long now = count();
        long end = System.currentTimeMillis() + LONGEST_MILLIS;
        do {
            System.gc();
        } while (last.get() != null && System.currentTimeMillis() < end);
        for (int quiet = 0;
                quiet < QUIET && System.currentTimeMillis() < end;
                quiet++) { // another thread frees what was found
            sleep();
            long next = count();
            quiet = next == now ? quiet : -1;
            now = next;
        }
        return now;
    }

    private static void sleep() {
        try {
            Thread.sleep(1);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static long count() {
        return ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class).stream()
                .filter(pool -> pool.getName().equals("direct"))
                .mapToLong(BufferPoolMXBean::getCount)
                .sum();
    }
}
