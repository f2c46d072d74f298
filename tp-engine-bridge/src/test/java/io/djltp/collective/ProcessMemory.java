package io.djltp.collective;

import org.bytedeco.javacpp.Pointer;
import org.testng.Assert;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** What a process holds outside the Java heap: tensors of the preset, and all of its memory. */
public final class ProcessMemory {

    private static final Path STATUS = Path.of("/proc/self/status");
    private static final Pattern RESIDENT = Pattern.compile("VmRSS:\\s*(\\d+) kB");

    private ProcessMemory() {}

    /**
     * Prints the native objects that JavaCPP would have the collector free, and the resident memory
     * of this process on systems that tell it.
     *
     * @param when the name of the measurement
     * @throws IOException if the system has the numbers but does not let them be read
     */
    public static void print(String when) throws IOException {
        System.out.print(when + " pointers=" + Pointer.totalCount());
        System.gc(); // it would take its own memory sooner or later
        if (Files.isReadable(STATUS)) {
            Matcher matcher = RESIDENT.matcher(Files.readString(STATUS));
            if (matcher.find()) {
                System.out.print(" resident=" + matcher.group(1));
            }
        }
        System.out.println();
    }

    /**
     * Asserts that a process that printed {@code early} and {@code late} has not grown in between.
     *
     * @param output what it printed
     * @param mebibytes the growth that is allowed
     */
    public static void assertFlat(String output, int mebibytes) {
        // a tensor an operation, left to the collector, would be thousands
        Assert.assertTrue(
                number(output, "late pointers=") < number(output, "early pointers=") + 100, output);
        if (Files.isReadable(STATUS)) {
            long early = number(output, "early pointers=\\d+ resident=");
            long late = number(output, "late pointers=\\d+ resident=");
            Assert.assertTrue(late - early < mebibytes * 1024L, output);
        }
    }

    /**
     * Returns a number that a process printed.
     *
     * @param output what it printed
     * @param before what comes before the number, a regular expression
     * @return the number
     */
    public static long number(String output, String before) {
        Matcher matcher = Pattern.compile(before + "(\\d+)").matcher(output);
        Assert.assertTrue(matcher.find(), output);
        return Long.parseLong(matcher.group(1));
    }
}
