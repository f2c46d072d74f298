package io.djltp.examples.train;

import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.dataset.Batch;
import ai.djl.training.loss.Loss;

import io.djltp.checkpoint.ResumableDataset;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.util.function.BooleanSupplier;

/** What {@code tp train} learns: the data, the network, and what becomes of it. */
interface TrainingTask extends AutoCloseable {

    /** {@return the number of classes} */
    int classes();

    /** {@return the number of batches of a pass} */
    long batches();

    /** {@return what a row is, in the plural} */
    String rowName();

    /** Estimates the memory. */
    RunMemory memory();

    /** {@return the model, with its network} */
    Model model();

    /** {@return the shapes of the inputs of a batch} */
    Shape[] inputs();

    /** {@return the loss} */
    Loss loss();

    /**
     * Returns the batches to train on.
     *
     * @param over asked before each batch; once it returns true, there are no more
     */
    ResumableDataset training(BooleanSupplier over);

    /**
     * Returns a batch of held-out rows.
     *
     * @param manager the manager of the batch
     * @return always the same rows, or {@code null} if none are held out
     */
    @Nullable Batch heldOut(NDManager manager);

    /**
     * Judges the trained model, and prints the figures.
     *
     * @param report the report, which gets them too
     * @param seconds how long the training took
     */
    void evaluate(RunReport report, double seconds) throws IOException;

    /** Saves the trained model. */
    void save() throws IOException;

    /** {@return what to type to use the saved model} */
    String command();

    /** Frees the model. */
    @Override
    void close();

    /** {@return the head, the last block of the network} */
    default Block head() {
        var blocks = model().getBlock().getChildren().values();
        return blocks.get(blocks.size() - 1);
    }
}
