package io.djltp.spark.ml;

import ai.djl.nn.Block;

import io.djltp.zoo.lemma.LemmaNetwork;

import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** The body of the lemmatiser; with the argument {@code kill}, its executor dies once. */
public final class LemmaBody implements BodyFactory {

    /** Creates a factory. */
    public LemmaBody() {}

    /** {@inheritDoc} */
    @Override
    public Block newBody(Map<String, String> arguments) {
        TaskContext task = TaskContext.get();
        if (arguments.containsKey("kill")
                && task != null
                && task.partitionId() == 1
                && !SparkEnv.get().executorId().equals("driver")) {
            kill(Path.of(arguments.get("kill")));
        }
        return LemmaNetwork.body(
                Integer.parseInt(arguments.get("rows")), Integer.parseInt(arguments.get("dim")));
    }

    private static void kill(Path mark) {
        try {
            Files.createFile(mark);
            long pid = ProcessHandle.current().pid();
            new ProcessBuilder("kill", "-9", Long.toString(pid)).start();
        } catch (FileAlreadyExistsException e) {
            // the second time it lives
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
