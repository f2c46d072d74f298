package io.djltp.checkpoint;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.training.ParallelTrainer;

import java.io.IOException;

/**
 * The state of a {@link ParallelTrainer}: everything that its next step depends on, written to
 * checkpoints while training goes on, and put back on any number of ranks and any mesh.
 *
 * <p>Used by the thread of the trainer, between two steps, in all processes alike. One for a
 * trainer.
 */
public final class TrainingState implements AutoCloseable {

    /** The name of the values that belong to the trainer, among those of a checkpoint. */
    public static final String VALUES = "trainer";

    /**
     * Creates the state of a trainer.
     *
     * @param trainer the trainer
     */
    public TrainingState(ParallelTrainer trainer) {}

    /**
     * Takes the state and begins to write it. Nothing of the size of a weight is copied: the next
     * step waits, before it changes anything, until all weights have gone to the files; the files
     * are synced and the checkpoint completed while training goes on. A failure ends the save and
     * not the training.
     *
     * @param folder where it goes
     * @param values what else the checkpoint holds, under any name but {@link #VALUES}; only those
     *     of the process of rank 0 are kept
     * @return the save, to be asked or waited for
     * @throws IllegalStateException if the trainer is not initialized, or not between two steps
     */
    public PendingSave save(CheckpointFolder folder, JsonObject values) {
        throw new UnsupportedOperationException();
    }

    /**
     * Puts back the state of a checkpoint, which ranks of another number, mesh or mode may have
     * written. Each rank reads the ranges that it holds. Comes after {@code
     * trainer.initialize(...)}, with the same network and optimizer.
     *
     * @param checkpoint the checkpoint
     * @throws IOException if it cannot be read, or is damaged: what was not read yet is as before,
     *     and the training can go on only from another checkpoint
     * @throws IllegalArgumentException if it is of another network or optimizer; nothing has been
     *     changed then
     * @throws IllegalStateException if the trainer is not initialized, or not between two steps
     */
    public void restore(Checkpoint checkpoint) throws IOException {
        throw new UnsupportedOperationException();
    }

    /** Waits until the last save is complete or has failed, and ends the writing thread. */
    @Override
    public void close() {}
}
