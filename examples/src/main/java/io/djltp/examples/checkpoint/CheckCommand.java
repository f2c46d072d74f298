package io.djltp.examples.checkpoint;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.examples.BadInputException;

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
                "Reads every byte of a checkpoint, or of all in a folder, and compares the"
                        + " checksums. Ends with 0 if all are as they were written, or says which"
                        + " bytes of which file are not.",
        mixinStandardHelpOptions = true)
final class CheckCommand implements Callable<Integer> {

    @Mixin private CheckpointChoice choice;

    private final PrintStream out = System.out;

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        int status = 0;
        List<Long> steps = choice.steps();
        for (Long step : steps) {
            try (Checkpoint checkpoint = choice.open(step)) {
                status = Math.max(status, verify(checkpoint));
            } catch (BadInputException e) { // what it is made of cannot even be read
                if (steps.size() == 1) {
                    throw e;
                }
                out.println(e.getMessage());
                status = 2;
            }
        }
        return status;
    }

    private int verify(Checkpoint checkpoint) throws IOException {
        List<String> damages = checkpoint.verify();
        damages.forEach(out::println);
        out.printf(
                damages.isEmpty() ? "%s is whole: %,d bytes read%n" : "%s is damaged%n",
                checkpoint.getPath(),
                checkpoint.getBytesRead());
        return damages.isEmpty() ? 0 : 1;
    }
}
