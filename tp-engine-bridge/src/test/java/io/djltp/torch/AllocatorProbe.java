package io.djltp.torch;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import com.sun.jna.Native;
import com.sun.jna.Pointer;

import io.djltp.internal.libtorch.LibTorch;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Deque;

/**
 * Frees a large array and prints how much of it the process still has, in MiB. Then threads that
 * need not have the same arena take and free a few such pieces of memory again and again; what is
 * printed is how much memory the system has given the process anew after the first times, in MiB.
 *
 * <p>A piece is larger than any that glibc takes from an arena by default (32 MiB), so that by
 * default each is fresh. And a segment of an arena (64 MiB) has room for one piece only, so that
 * where arenas are used each segment is empty once its piece is freed. The pieces are not arrays,
 * whose alignment and small companions would decide whether a segment is quite empty.
 */
final class AllocatorProbe {

    private static final long SIZE = 12 << 20; // elements: 48 MiB
    private static final int THREADS = 2;
    private static final int TIMES = 8;
    private static final int PIECES = 3;
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
        try {
            useSeveral(); // until all pieces have their places
            long before = faults();
            useSeveral();
            fresh += faults() - before;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static void useSeveral() {
        for (int time = 0; time < TIMES; time++) {
            takeAndFree();
        }
    }

    private static void takeAndFree() {
        Deque<Pointer> pieces = new ArrayDeque<>();
        for (int i = 0; i < PIECES; i++) {
            Pointer piece = new Pointer(Native.malloc(SIZE * Float.BYTES));
            piece.setMemory(0, SIZE * Float.BYTES, (byte) 1);
            pieces.push(piece);
        }
        pieces.forEach(piece -> Native.free(Pointer.nativeValue(piece)));
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
