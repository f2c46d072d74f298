package io.djltp.examples.checkpoint;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.examples.BadInputException;

import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.List;

/** Which checkpoint is meant: the newest of a folder, one of a step, or a folder of its own. */
final class CheckpointChoice {

    private static final String OF_TRAINING = "checkpoints"; // in the --out of tp train and tp lm

    @Parameters(
            paramLabel = "DIR",
            description =
                    "Folder of a training, its --out; or of its checkpoints; or one of them:"
                            + " DIR/step-00000120.")
    private Path folder;

    @Option(names = "--step", description = "The checkpoint of this step, not the newest.")
    private Long step;

    /**
     * Opens the checkpoint.
     *
     * @return the checkpoint
     * @throws BadInputException if there is none, or it is damaged or of another version
     */
    Checkpoint open() throws IOException {
        List<Long> steps = steps();
        return open(steps.get(steps.size() - 1));
    }

    /**
     * Returns the steps of the checkpoints that were named: one, or all of a folder.
     *
     * @return the steps, ascending; {@code null} alone for a checkpoint that was named by itself
     * @throws BadInputException if there is none
     */
    List<Long> steps() throws IOException {
        if (isSingle()) {
            if (step != null) {
                throw new BadInputException(
                        "--step %s: %s is one checkpoint: name the folder that it is in",
                        step, folder);
            }
            return Collections.singletonList(null);
        }
        if (step != null) {
            return List.of(step);
        }
        List<Long> steps = all().getSteps();
        if (steps.isEmpty()) {
            throw new BadInputException(folder + " has no complete checkpoint");
        }
        return steps;
    }

    /**
     * Opens the checkpoint of a step.
     *
     * @param which one of {@link #steps()}
     * @return the checkpoint
     * @throws BadInputException if there is none, or it is damaged or of another version
     */
    Checkpoint open(Long which) throws IOException {
        try {
            return which == null ? Checkpoint.open(folder) : all().openStep(which);
        } catch (CheckpointException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    private boolean isSingle() {
        return Files.exists(folder.resolve("index.json"))
                || String.valueOf(folder.toAbsolutePath().normalize().getFileName())
                        .startsWith("step-");
    }

    private CheckpointFolder all() throws IOException {
        Path ofTraining = folder.resolve(OF_TRAINING);
        try {
            return CheckpointFolder.read(Files.isDirectory(ofTraining) ? ofTraining : folder);
        } catch (CheckpointException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }
}
