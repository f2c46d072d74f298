package io.djltp.report;

import java.io.IOException;
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
     * Returns how much memory can be used without swapping.
     *
     * @return the number of bytes, or nothing where it cannot be asked
     */
    public static OptionalLong available() {
        return read(Path.of("/proc/meminfo"), "MemAvailable:");
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
