package io.djltp.internal.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.collective.Work;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.rank.DeviceMesh;

import java.util.ArrayList;
import java.util.List;

/**
 * Parameters that have no gradient but change in the forward pass, such as the running mean of a
 * batch normalization: those of the types {@code RUNNING_MEAN} and {@code RUNNING_VAR}, and numbers
 * of the type {@code OTHER}. Where the batch is cut over the ranks each rank has others, and those
 * of rank 0 count. They are what the model holds and saves, and the other ranks get them before an
 * evaluation, and, where other processes hold a model of their own, after every step.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class RunningBuffers {

    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final boolean cut; // else all ranks see the same numbers
    private boolean changed;

    /**
     * Creates the buffers of a training.
     *
     * @param ranks the ranks
     * @param parameters what the ranks hold
     */
    public RunningBuffers(RankPool ranks, ParallelParameters parameters) {
        this.ranks = ranks;
        this.parameters = parameters;
        cut = ranks.getContext(0).getMesh().isCut(DeviceMesh.DATA);
    }

    /** Notes that a forward pass has been made in which they may have changed. */
    public void change() {
        changed = true;
    }

    /** Gives all ranks what rank 0 has. All processes call it. */
    public void equalize() {
        if (!cut || !changed) {
            return;
        }
        changed = false;
        List<Parameter> buffers =
                parameters.getUntrained().stream().filter(RunningBuffers::isBuffer).toList();
        if (!buffers.isEmpty()) {
            ranks.runAll(
                    context -> {
                        broadcast(context, buffers);
                    });
        }
    }

    /** Does so after a step where it cannot wait until an evaluation. */
    public void equalizeAfterStep() {
        if (ranks.isDistributed()) {
            equalize();
        }
    }

    private static boolean isBuffer(Parameter parameter) {
        switch (parameter.getType()) {
            case RUNNING_MEAN:
            case RUNNING_VAR:
                return true;
            case OTHER:
                return parameter.getArray().getDataType().getNumOfBytes() >= Float.BYTES;
            default:
                return false;
        }
    }

    private void broadcast(ParallelContext context, List<Parameter> buffers) {
        context.getWorld().setIssuer("the statistics of rank 0");
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            List<Work> works = new ArrayList<>();
            for (Parameter parameter : buffers) {
                NDArray value = parameters.getStore(context).getHeld(parameter);
                works.add(context.getWorld().broadcast(TensorView.of(value), 0));
            }
            works.forEach(Work::await);
        }
    }
}
