package io.djltp.checkpoint.store;

import java.io.Closeable;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Optional;

/** A folder of checkpoints, one a step. */
public final class CheckpointFolder implements Closeable {

    private CheckpointFolder() {}

    /**
     * Opens a folder for a run, and makes it if there is none: in the process of rank 0, before the
     * other processes {@link #join} it. What an earlier run left half written or half removed is
     * removed.
     *
     * @param path the folder
     * @return the folder, which no other run can open until it is closed
     * @throws CheckpointException if another run uses the folder, or nothing can be written to it
     * @throws IOException if it cannot be read
     */
    public static CheckpointFolder open(Path path) throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Opens a folder in another process of the run that has it open.
     *
     * @param path the folder
     * @return the folder
     * @throws CheckpointException if no run has opened it, or nothing can be written to it
     * @throws IOException if it cannot be read
     */
    public static CheckpointFolder join(Path path) throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Opens a folder to read from it, whoever uses it.
     *
     * @param path the folder
     * @return the folder, in which no checkpoint can be begun
     * @throws CheckpointException if there is no such folder
     */
    public static CheckpointFolder read(Path path) throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Returns the folder.
     *
     * @return the path
     */
    public Path getPath() {
        throw new UnsupportedOperationException();
    }

    /**
     * Returns the complete checkpoints.
     *
     * @return their steps in ascending order
     * @throws IOException if the folder cannot be read
     */
    public List<Long> getSteps() throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Opens the newest complete checkpoint. A damaged one is not passed over: going on from an
     * older one is for the user to decide, who moves the damaged one away.
     *
     * @return the checkpoint, or empty if there is none yet
     * @throws CheckpointException if it is damaged, or of another version
     * @throws IOException if it cannot be read
     */
    public Optional<Checkpoint> openNewest() throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Opens the checkpoint of a step.
     *
     * @param step the step
     * @return the checkpoint
     * @throws CheckpointException if there is none, it is damaged, or of another version
     * @throws IOException if it cannot be read
     */
    public Checkpoint openStep(long step) throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Begins a checkpoint. All processes of the run begin the same ones in the same order.
     *
     * @param step the step, of which there is no checkpoint yet
     * @param mesh the ranks of the run, for people to read
     * @param parts the number of parts: places of the tensor group
     * @param own the parts that this process writes; none if another one has the same shards
     * @return the writer
     * @throws CheckpointException if there is a checkpoint of this step, or the folder was opened
     *     to read only
     * @throws IOException if nothing can be written: a full or read-only disk
     */
    public CheckpointWriter begin(long step, String mesh, int parts, Collection<Integer> own)
            throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Sets how long the process of rank 0 waits for the parts of the others, once its own are
     * written.
     *
     * @param timeout the time, 10 minutes unless set
     */
    public void setTimeout(Duration timeout) {
        throw new UnsupportedOperationException();
    }

    /**
     * Removes old checkpoints. The process of rank 0 does it, after a new one is complete.
     *
     * @param keep how many of the newest stay, 1 or more
     * @return the steps of those that were removed
     * @throws IOException if one cannot be removed
     */
    public List<Long> prune(int keep) throws IOException {
        throw new UnsupportedOperationException();
    }

    /** Lets other runs use the folder. */
    @Override
    public void close() throws IOException {
        throw new UnsupportedOperationException();
    }
}
