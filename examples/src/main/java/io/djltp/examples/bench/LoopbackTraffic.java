package io.djltp.examples.bench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * What has gone over this machine's loopback device so far, all headers and acknowledgements
 * included, as Linux counts it.
 *
 * @param bytes the number of bytes
 * @param packets the number of packets
 */
record LoopbackTraffic(long bytes, long packets) {

    private static final Path FILE = Path.of("/proc/net/dev");
    private static final String DEVICE = "lo:";

    /** Returns what has gone so far, or nothing at all where it cannot be asked. */
    static LoopbackTraffic now() throws IOException {
        if (Files.isReadable(FILE)) {
            for (String line : Files.readAllLines(FILE)) {
                if (line.strip().startsWith(DEVICE)) {
                    String[] numbers = line.strip().substring(DEVICE.length()).strip().split(" +");
                    return new LoopbackTraffic(
                            Long.parseLong(numbers[0]), Long.parseLong(numbers[1]));
                }
            }
        }
        return new LoopbackTraffic(0, 0);
    }

    LoopbackTraffic since(LoopbackTraffic before) {
        return new LoopbackTraffic(bytes - before.bytes, packets - before.packets);
    }
}
