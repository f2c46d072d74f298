package io.djltp.report;

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
        return read(Path.of("/proc/self/status"), "VmRSS:");
    }

    /**
     * Returns the largest resident memory that this process has had.
     *
     * @return the number of bytes, or nothing where it cannot be asked
     */
    public static OptionalLong peakResident() {
        return read(Path.of("/proc/self/status"), "VmHWM:");
    }

    /**
     * Returns how much memory can be used without swapping: by the whole machine, and by this
     * process within the limit of its container.
     *
     * @return the number of bytes, or nothing where it cannot be asked
     */
    public static OptionalLong available() {
        OptionalLong machine = read(Path.of("/proc/meminfo"), "MemAvailable:");
        OptionalLong own = resident();
        if (machine.isEmpty()
                || own.isEmpty()
                || !(ManagementFactory.getOperatingSystemMXBean()
                        instanceof OperatingSystemMXBean)) {
            return machine;
        }
        // Java knows the limit of a container, and that of the machine where there is none
        OperatingSystemMXBean system =
                (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return OptionalLong.of(
                within(system.getTotalMemorySize(), own.getAsLong(), machine.getAsLong()));
    }

    /** Returns what is left to a process of a limit, and of what the machine has. */
    static long within(long limit, long resident, long available) {
        return Math.min(available, Math.max(0, limit - resident));
    }

    private static OptionalLong read(Path file, String key) {
        if (Files.isReadable(file)) {
            try {
                for (String line : Files.readAllLines(file)) {
                    if (line.startsWith(key)) {
                        String[] words = line.substring(key.length()).trim().split(" +");
                        return OptionalLong.of(Long.parseLong(words[0]) * 1024); // kB
                    }
                }
            } catch (IOException e) {
                return OptionalLong.empty();
            }
        }
        return OptionalLong.empty();
    }
}
