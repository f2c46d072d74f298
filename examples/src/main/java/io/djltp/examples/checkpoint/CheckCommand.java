package io.djltp.examples.checkpoint;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.Damage;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;

import java.io.IOException;
import java.io.PrintStream;
import java.util.List;
import java.util.concurrent.Callable;

/** {@code tp checkpoint verify}: whether every byte is as it was written. */
@Command(
        name = "verify",
        description =
                "Reads every byte of a checkpoint and compares the checksums. Ends with 0 if all"
                        + " are as they were written, or says which bytes of which file are not.",
        mixinStandardHelpOptions = true)
final class CheckCommand implements Callable<Integer> {

    @Mixin private CheckpointChoice choice;

    private final PrintStream out = System.out;

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        try (Checkpoint checkpoint = choice.open()) {
            List<Damage> damages = checkpoint.verify();
            for (Damage damage : damages) {
                out.println(damage);
            }
            if (damages.isEmpty()) {
                out.printf(
                        "%s is whole: %,d bytes read%n",
                        checkpoint.getPath(), checkpoint.getBytesRead());
                return 0;
            }
            out.printf("%s is damaged%n", checkpoint.getPath());
            return 1;
        }
    }
}
