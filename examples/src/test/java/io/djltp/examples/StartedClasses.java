package io.djltp.examples;

import io.djltp.examples.chaos.ToyJob;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.stream.Stream;

/**
 * Loads what the processes load that tests start, for the archive of their classes: of a training,
 * of a language model, and of two processes of a job, which are threads here. The libraries that
 * connect them are a third of all that a process of a job reads.
 */
public final class StartedClasses {

    private StartedClasses() {}

    /**
     * Runs all of it once.
     *
     * @param args a folder for what is written
     * @throws Exception if a job fails
     */
    public static void main(String[] args) throws Exception {
        Path folder = Files.createDirectories(Path.of(args[0]));
        execute("train --tp 2 --steps 1 --dim 8 --batch 8 --held-out 1 --out " + folder);
        execute("lm --tp 2 --steps 1 --layers 1 --width 8 --heads 2 --batch 2 --characters 2");
        ToyJob.inThreads(2);
        delete(folder);
    }

    private static void execute(String arguments) {
        int status = Tp.execute(arguments.split(" "));
        if (status != 0) {
            throw new IllegalStateException(arguments + " ended with status " + status);
        }
    }

    private static void delete(Path folder) throws IOException {
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }
}
