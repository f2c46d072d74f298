package io.djltp.examples.checkpoint;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.CheckpointException;
import io.djltp.examples.BadInputException;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.NavigableMap;

/** Which checkpoint is meant: one of a folder, or a folder of its own. */
final class CheckpointChoice {

    private static final String OF_TRAINING = "checkpoints"; // in the --out of tp train and tp lm

    @Parameters(
            paramLabel = "DIR",
            description =
                    "Folder of a training, its --out; or of its checkpoints; or one of them:"
                            + " DIR/step-00000120.")
    private Path folder;

    @Option(names = "--step", description = "The checkpoint of this step alone.")
    private @Nullable Long step;

    /** Opens the checkpoint that was named, or the newest of the folder. */
    Checkpoint open() throws IOException {
        List<Path> all = all();
        return open(all.get(all.size() - 1));
    }

    /** Opens a checkpoint, or throws BadInputException if it is damaged or of another version. */
    static Checkpoint open(Path path) throws IOException {
        try {
            return Checkpoint.open(path);
        } catch (CheckpointException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    /** Returns the checkpoint that was named, or all of the folder by step. */
    List<Path> all() throws IOException {
        if (Files.exists(folder.resolve("index.json"))
                || String.valueOf(folder.toAbsolutePath().normalize().getFileName())
                        .startsWith("step-")) {
            if (step != null) {
                throw new BadInputException(
                        "--step %s: %s is one checkpoint: name the folder that it is in",
                        step, folder);
            }
            return List.of(folder);
        }
        NavigableMap<Long, Path> steps = steps();
        if (step == null && steps.isEmpty()) {
            throw new BadInputException(folder + " has no complete checkpoint");
        } else if (step != null && !steps.containsKey(step)) {
            throw new BadInputException(
                    "%s has no checkpoint of step %d, but of %s", folder, step, steps.keySet());
        }
        return step == null ? List.copyOf(steps.values()) : List.of(steps.get(step));
    }

    private NavigableMap<Long, Path> steps() throws IOException {
        Path ofTraining = folder.resolve(OF_TRAINING);
        try {
            return Checkpoint.list(Files.isDirectory(ofTraining) ? ofTraining : folder);
        } catch (CheckpointException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }
}
