package io.djltp.collective;

import io.djltp.testing.Unchecked;

import org.testng.Assert;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;
import java.util.stream.Stream;

/** What groups and jobs might leave behind in a process: threads and sockets. */
public final class Leftovers {

    private static final Predicate<String> SOCKETS = text -> text.endsWith(" sockets");

    static {
        // for which Java opens one of its own, and keeps it
        Unchecked.run(() -> SocketChannel.open().close());
    }

    private Leftovers() {}

    /**
     * Returns what is there now.
     *
     * @return the names of our threads, and how many sockets are open, where the system says it
     */
    public static List<String> list() {
        return Stream.concat(
                        Thread.getAllStackTraces().keySet().stream()
                                .map(Thread::getName)
                                .filter(name -> name.startsWith("tp-"))
                                .sorted(),
                        Stream.of(countSockets() + " sockets"))
                .toList();
    }

    /**
     * Waits a moment for threads to end.
     *
     * @param before what was there before
     */
    public static void assertNoneSince(List<String> before) throws InterruptedException {
        for (int i = 0; i < 500 && !added(before).isEmpty(); i++) {
            Thread.sleep(20);
        }
        Assert.assertEquals(added(before), List.of());
    }

    /** What was there before may have ended meanwhile: a thread of an earlier test. */
    private static List<String> added(List<String> before) {
        List<String> added = new ArrayList<>(list());
        before.forEach(added::remove);
        long sockets = before.stream().filter(SOCKETS).mapToLong(Leftovers::number).sum();
        added.removeIf(SOCKETS.and(text -> number(text) <= sockets));
        return added;
    }

    private static long number(String sockets) {
        return Long.parseLong(sockets.substring(0, sockets.indexOf(' ')));
    }

    private static long countSockets() {
        Path files = Path.of("/proc/self/fd");
        if (!Files.isDirectory(files)) {
            return 0;
        }
        try (Stream<Path> open = Files.list(files)) {
            return open.filter(Leftovers::isSocket).count();
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    private static boolean isSocket(Path file) {
        try {
            return Files.readSymbolicLink(file).toString().startsWith("socket:");
        } catch (IOException e) {
            return false; // closed meanwhile
        }
    }
}
