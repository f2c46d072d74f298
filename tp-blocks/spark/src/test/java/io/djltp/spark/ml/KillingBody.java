package io.djltp.spark.ml;

import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;

import org.apache.spark.TaskContext;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/**
 * A linear layer in whose middle the executor of a task dies, as often as {@code kills} says: once
 * the checkpoint {@code after} is there.
 */
public final class KillingBody implements BodyFactory {

    /** Creates a factory. */
    public KillingBody() {}

    /** {@inheritDoc} */
    @Override
    public Block newBody(Map<String, String> arguments) {
        TaskContext context = TaskContext.get();
        boolean mortal =
                context != null
                        && Integer.toString(context.partitionId()).equals(arguments.get("task"));
        return new SequentialBlock()
                .add(
                        new LambdaBlock(
                                inputs -> {
                                    if (mortal) {
                                        kill(arguments);
                                    }
                                    return new NDList(inputs);
                                },
                                "kill"))
                .add(Linear.builder().setUnits(6).build());
    }

    private static void kill(Map<String, String> arguments) {
        if (!Files.exists(Path.of(arguments.get("after")))) {
            return;
        }
        for (int i = 0; i < Integer.parseInt(arguments.get("kills")); i++) {
            try {
                Files.createFile(Path.of(arguments.get("mark") + i));
            } catch (FileAlreadyExistsException e) {
                continue;
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            try {
                String pid = Long.toString(ProcessHandle.current().pid());
                new ProcessBuilder("kill", "-9", pid).start().waitFor();
                Thread.sleep(60_000); // the signal comes when it comes
            } catch (IOException | InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
    }
}
