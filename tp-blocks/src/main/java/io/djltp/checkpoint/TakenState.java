package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;

import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.checkpoint.store.CheckpointWriter;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.torch.Autograd;
import io.djltp.torch.TensorView;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/**
 * The state of a trainer after a step: views of what changes in steps alone, copies of what forward
 * passes change.
 */
final class TakenState implements AutoCloseable {

    /** Of weights, which change in steps, trained or frozen; others are buffers of a block. */
    private static final Set<Parameter.Type> WEIGHTS =
            Set.of(
                    Parameter.Type.WEIGHT,
                    Parameter.Type.BIAS,
                    Parameter.Type.GAMMA,
                    Parameter.Type.BETA);

    private final NDManager manager = NDManager.newBaseManager(); // not the trainer's: it outlives
    private final StateLayout layout;
    private final long step;
    private final String mesh;
    private final List<Tensor> tensors = new ArrayList<>();

    /**
     * A tensor of the state.
     *
     * @param tensor what the whole is, and which ranges each part has
     * @param arrays what each rank of this process has of it
     */
    record Tensor(CutTensor tensor, List<NDArray> arrays) {}

    TakenState(StateLayout layout, long step, String mesh) {
        this.layout = layout;
        this.step = step;
        this.mesh = mesh;
    }

    /** Returns the manager of views and copies. */
    NDManager getManager() {
        return manager;
    }

    /** Returns the step after which the state was taken. */
    long getStep() {
        return step;
    }

    void add(List<Tensor> more) {
        tensors.addAll(more);
    }

    /**
     * Adds a parameter.
     *
     * @param parameter the parameter
     * @param values what the ranks of this process have of it
     */
    void add(Parameter parameter, List<NDArray> values) {
        boolean changes = !parameter.requiresGradient() && !WEIGHTS.contains(parameter.getType());
        List<NDArray> arrays = new ArrayList<>();
        for (NDArray value : values) {
            NDArray view = Autograd.detach(value, manager);
            arrays.add(changes || !TensorView.of(view).isContiguous() ? view.duplicate() : view);
        }
        tensors.add(new Tensor(layout.ofWeight(parameter), arrays));
    }

    /**
     * Begins to write.
     *
     * @param folder where it goes
     * @return the writer, which knows the tensors of this process
     */
    CheckpointWriter begin(CheckpointFolder folder) throws IOException {
        CheckpointWriter writer = folder.begin(step, mesh, layout.parts(), layout.ownParts());
        try {
            for (Tensor each : tensors) {
                writer.declare(each.tensor());
                for (int rank = 0; rank < layout.ranks(); rank++) {
                    if (layout.isWriter(rank)) {
                        writer.put(
                                each.tensor().name(), layout.partOf(rank), each.arrays().get(rank));
                    }
                }
            }
            return writer;
        } catch (RuntimeException | Error e) {
            writer.close();
            throw e;
        }
    }

    /** Lets go of the arrays. */
    void release() {
        manager.close();
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        release();
    }
}
