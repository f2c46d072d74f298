package io.djltp.examples.checkpoint;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.examples.BadInputException;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.concurrent.Callable;

/** {@code tp checkpoint reshard}: a checkpoint in another number of files. */
@Command(
        name = "reshard",
        description = {
            "Writes a checkpoint for another number of tensor-parallel ranks, a chunk at a time.",
            "A training goes on at any number of ranks without it: what a rank needs of a tensor"
                    + " then lies in one file."
        },
        mixinStandardHelpOptions = true)
final class ReshardCommand implements Callable<Integer> {

    private static final int MOST_RANKS = 1024;

    @Mixin private CheckpointChoice choice;

    @Option(names = "--ranks", required = true, description = "The number of ranks.")
    private int ranks;

    @Option(names = "--out", required = true, description = "The folder for the checkpoint.")
    private Path target;

    private final PrintStream out = System.out;

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        if (ranks < 1 || ranks > MOST_RANKS) {
            throw new BadInputException("--ranks %s: 1 to %s", ranks, MOST_RANKS);
        }
        try (Checkpoint from = choice.open();
                CheckpointFolder to = CheckpointFolder.open(target)) {
            from.reshard(to, ranks);
            try (Checkpoint again = to.openStep(from.getStep())) {
                out.printf(
                        "%s, written in %s, is in %s in %s%n",
                        from.getPath(),
                        parts(from.getParts()),
                        parts(again.getParts()),
                        again.getPath());
            }
        } catch (CheckpointException e) {
            throw new BadInputException(e.getMessage(), e);
        }
        return 0;
    }

    private static String parts(int number) {
        return number == 1 ? "1 part" : number + " parts";
    }
}
