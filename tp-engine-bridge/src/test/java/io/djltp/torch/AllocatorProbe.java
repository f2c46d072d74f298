package io.djltp.torch;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** Frees a large array and prints how much of it the process still has, in MiB. */
final class AllocatorProbe {

    private static final long SIZE = 12 << 20; // elements: 48 MiB

    private AllocatorProbe() {}

    public static void main(String[] args) throws InterruptedException {
        if (args[0].equals("kept")) {
            NativeAllocator.keepFreedArrays();
        }
        LibTorch.load();
        Thread rank = new Thread(AllocatorProbe::run); // as all that compute: begun after the call
        rank.start();
        rank.join();
    }

    private static void run() {
        try (NDManager manager = NDManager.newBaseManager()) {
            manager.ones(new Shape(1)).close(); // whatever the first array takes
            long before = resident();
            manager.ones(new Shape(SIZE)).close();
            System.out.println("left=" + (resident() - before));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static long resident() throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmRSS:")) {
                return Long.parseLong(line.replaceAll("\\D", "")) >> 10;
            }
        }
        throw new IOException("no VmRSS");
    }
}
