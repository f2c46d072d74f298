package io.djltp.torch;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Frees a large array and prints how much of it the process still has, in MiB. Then several
 * threads, each of which has another arena, use and free eight arrays again and again; what is
 * printed is how much memory the system has given the process anew in the later half of it, in MiB.
 */
final class AllocatorProbe {

    private static final long SIZE = 12 << 20; // elements: 48 MiB
    private static final int THREADS = 8;
    private static final int TIMES = 10;
    private static final long PAGE = 4096;

    private static long fresh;

    private AllocatorProbe() {}

    public static void main(String[] args) throws InterruptedException {
        if (args[0].equals("kept")) {
            NativeAllocator.keepFreedArrays();
        }
        LibTorch.load();
        Thread rank = new Thread(AllocatorProbe::run); // as all that compute: begun after the call
        rank.start();
        rank.join();
        for (int i = 0; i < THREADS; i++) {
            Thread other = new Thread(AllocatorProbe::useAgain);
            other.start();
            other.join();
        }
        System.out.println("fresh=" + (fresh * PAGE >> 20));
    }

    private static void useAgain() {
        try (NDManager manager = NDManager.newBaseManager()) {
            useSeveral(manager, TIMES / 2); // until all are in their places
            long before = faults();
            useSeveral(manager, TIMES / 2);
            fresh += faults() - before;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static void useSeveral(NDManager manager, int times) {
        for (int time = 0; time < times; time++) {
            try (NDManager step = manager.newSubManager()) {
                for (int i = 0; i < 8; i++) {
                    step.ones(new Shape(SIZE / 3));
                }
            }
        }
    }

    /** Returns how many pages the system has given to this process. */
    private static long faults() throws IOException {
        return Long.parseLong(Files.readString(Path.of("/proc/self/stat")).split(" ")[9]);
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
