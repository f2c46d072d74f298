package io.djltp.internal.report;

import com.sun.management.OperatingSystemMXBean;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.OptionalLong;

/** What the operating system says about memory, where it says it as Linux does. */
public final class SystemMemory {

    private SystemMemory() {}

    /**
     * Returns the resident memory of this process.
     *
     * @return the number of bytes, or nothing where it cannot be asked
     */
    public static OptionalLong resident() {
        return read("/proc/self/status", "VmRSS:");
    }

    /**
     * Returns the largest resident memory that this process has had.
     *
     * @return the number of bytes, or nothing where it cannot be asked
     */
    public static OptionalLong peakResident() {
        return read("/proc/self/status", "VmHWM:");
    }

    /**
     * Returns how much memory can be used without swapping: by the whole machine, and by this
     * process within the limit of its container.
     *
     * @return the number of bytes, or nothing where it cannot be asked
     */
    public static OptionalLong available() {
        OptionalLong machine = read("/proc/meminfo", "MemAvailable:");
        OptionalLong own = resident();
        // Java knows the limit of a container, and that of the machine where there is none
        return machine.isPresent()
                        && own.isPresent()
                        && ManagementFactory.getOperatingSystemMXBean()
                                instanceof OperatingSystemMXBean system
                ? OptionalLong.of(
                        within(system.getTotalMemorySize(), own.getAsLong(), machine.getAsLong()))
                : machine;
    }

    /**
     * Returns what is left to a process of a limit, and of what the machine has.
     *
     * @param limit the bytes that it may have
     * @param resident the bytes that it has
     * @param available the bytes that the machine has left
     * @return the bytes
     */
    public static long within(long limit, long resident, long available) {
        return Math.min(available, Math.max(0, limit - resident));
    }

    private static OptionalLong read(String file, String key) {
        try {
            return Files.readAllLines(Path.of(file)).stream()
                    .filter(line -> line.startsWith(key))
                    .mapToLong(line -> 1024 * Long.parseLong(line.replaceAll("\\D", ""))) // kB
                    .findFirst();
        } catch (IOException e) {
            return OptionalLong.empty();
        }
    }
}
