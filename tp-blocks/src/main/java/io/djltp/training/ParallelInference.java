package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.Errors;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.parameters.ShardedArray;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.Autograd;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;

/**
 * The outputs of a network, computed by several ranks without a training: each rank has its shards
 * of the weights, and there is no state of an optimizer.
 *
 * <p>Several threads may ask at once. Every pass takes all ranks, so that they come one after
 * another. A thread that is interrupted in a pass gets its output, and stays interrupted.
 */
public final class ParallelInference implements AutoCloseable {

    private final ParallelTrainer ranks;
    private volatile boolean closed;

    /**
     * Starts the ranks.
     *
     * @param model the model, whose parameters may have values
     * @param config the ranks
     * @throws IllegalStateException if an open {@code ParallelTrainer} trains the model
     * @throws IllegalArgumentException if there are too few GPUs for the ranks
     */
    public ParallelInference(Model model, ParallelConfig config) {
        // a rate of 0: there is no step, and plain SGD keeps no state
        Optimizer unused = Optimizer.sgd().setLearningRateTracker(Tracker.fixed(0)).build();
        DefaultTrainingConfig training =
                new DefaultTrainingConfig(Loss.l2Loss())
                        .optOptimizer(unused)
                        .optDevices(new Device[] {model.getNDManager().getDevice()});
        ranks = new ParallelTrainer(model, training, config);
        ranks.getRanks().setInterruptible(false); // a pass is short, and others need the ranks
    }

    /**
     * Hands out the weights, as the first pass does it otherwise. Parameters without values are
     * initialized.
     *
     * @param inputs the shapes of the inputs
     * @throws IllegalArgumentException if a parameter cannot be cut over the ranks
     */
    public void initialize(Shape... inputs) {
        ranks.initialize(inputs);
    }

    /**
     * Computes the output of a batch.
     *
     * @param input the whole batch
     * @param scope the manager of what the pass leaves behind, to be closed after the output
     * @return the output as a whole, which belongs to {@code scope}
     * @throws IllegalStateException if this is closed, or another thread closes it
     */
    public synchronized NDList forward(NDList input, NDManager scope) {
        Errors.checkState(!closed, "The ranks have been closed");
        NDList own = new NDList();
        for (NDArray array : input) {
            NDArray view = Autograd.detach(array, scope);
            view.setName(array.getName());
            own.add(view);
        }
        NDList output = new NDList();
        for (NDArray array : evaluate(own)) {
            boolean standIn = ShardedArray.isStandIn(array); // is made whole, or refuses
            NDArray whole = standIn ? array.duplicate() : array;
            whole.attach(scope);
            output.add(whole);
        }
        return output;
    }

    private NDList evaluate(NDList input) {
        try {
            return ranks.evaluate(input);
        } catch (RankFailedException | IllegalStateException e) {
            if (!closed) {
                throw e;
            }
            throw new IllegalStateException(
                    "The ranks were closed by another thread during this prediction", e);
        }
    }

    /**
     * Returns the ranks, to run something on all of them.
     *
     * @return the ranks
     */
    public RankPool getRanks() {
        return ranks.getRanks();
    }

    /**
     * Returns a rank's parameters. To be used by the rank, or while no pass is running.
     *
     * @param rank the place of the rank among those of this process
     * @return the rank's store
     */
    public RankParameterStore getParameterStore(int rank) {
        return ranks.getParameterStore(rank);
    }

    /**
     * Returns how many collective operations rank 0 has taken part in.
     *
     * @return a snapshot of the counts
     */
    public CollectiveCounts getCollectiveCounts() {
        return ranks.getCollectiveCounts();
    }

    /**
     * Ends the ranks and frees what they hold. The model does not get the weights of layers that
     * are cut back, and is to be closed: what was loaded is still in its file. A pass that is
     * running in another thread is aborted.
     */
    public void drop() {
        closed = true;
        ranks.dropWeights();
        ranks.getRanks().close();
        if (ranks.getRanks().isStopped()) { // else a rank still computes with what would be freed
            ranks.getManager().close();
        }
        ranks.close();
    }

    /** Ends the ranks. The model then holds its weights again, whole. */
    @Override
    public void close() {
        closed = true;
        ranks.close();
    }
}
