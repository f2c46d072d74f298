package io.djltp.examples.bench;

import com.sun.management.OperatingSystemMXBean;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * What a JVM of members says of itself.
 *
 * @param nanos when the last of its members was done, on the clock of {@link System#nanoTime},
 *     which the processes of a machine share
 * @param heap the bytes in use of the Java heap, after a collection
 * @param anonymous the bytes of resident memory that is not of files, or 0 where it cannot be asked
 * @param threads the number of threads
 * @param cpuNanos the processor time so far
 * @param text something that its members were told, or empty
 */
record MemberReport(
        long nanos, long heap, long anonymous, int threads, long cpuNanos, String text) {

    private static final Path STATUS = Path.of("/proc/self/status");
    private static final String ANONYMOUS = "RssAnon:";

    /**
     * Returns a report of this moment.
     *
     * @param nanos when the members were done
     * @param text what they were told
     * @return the report
     */
    static MemberReport now(long nanos, String text) throws IOException {
        System.gc();
        return new MemberReport(
                nanos,
                ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed(),
                readAnonymous(),
                ManagementFactory.getThreadMXBean().getThreadCount(),
                ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class)
                        .getProcessCpuTime(),
                text);
    }

    private static long readAnonymous() throws IOException {
        if (!Files.isReadable(STATUS)) {
            return 0;
        }
        return Files.readAllLines(STATUS).stream()
                .filter(line -> line.startsWith(ANONYMOUS))
                .mapToLong(line -> Long.parseLong(line.replaceAll("[^0-9]", "")) * 1024)
                .sum();
    }
}
