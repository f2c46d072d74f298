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
        try {
            if (Files.exists(folder.resolve("index.json"))
                    || folder.toAbsolutePath().getFileName().toString().startsWith("step-")) {
                if (step != null) {
                    throw new BadInputException(
                            "--step "
                                    + step
                                    + ": "
                                    + folder
                                    + " is one checkpoint: name the folder that it is in");
                }
                return Checkpoint.open(folder);
            }
            Path ofTraining = folder.resolve(OF_TRAINING);
            CheckpointFolder all =
                    CheckpointFolder.read(Files.isDirectory(ofTraining) ? ofTraining : folder);
            if (step != null) {
                return all.openStep(step);
            }
            return all.openNewest()
                    .orElseThrow(
                            () -> new BadInputException(folder + " has no complete checkpoint"));
        } catch (CheckpointException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }
}
