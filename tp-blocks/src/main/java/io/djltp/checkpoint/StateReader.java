package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.nn.Parameter;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.optimizer.OptimizerState;
import io.djltp.optimizer.StateKind;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.Autograd;
import io.djltp.torch.TensorView;
import io.djltp.training.TrainerState;

import java.io.IOException;
import java.util.List;
import java.util.Map;

/**
 * Reads the weights of a rank, and what the optimizer keeps of them, into the arrays that the rank
 * has: the ranges that it holds by the cuts of its own mesh, one tensor after another.
 */
@SuppressWarnings("try") // a scope is used by being open
final class StateReader {

    private final TrainerState state;
    private final StateLayout layout;
    private final Checkpoint checkpoint;
    private final List<StateKind> kinds;

    /**
     * Creates a reader.
     *
     * @param state the trainer
     * @param layout how its parameters lie
     * @param checkpoint the checkpoint, of the same network and optimizer
     * @param kinds what the optimizer keeps of a weight
     */
    StateReader(
            TrainerState state, StateLayout layout, Checkpoint checkpoint, List<StateKind> kinds) {
        this.state = state;
        this.layout = layout;
        this.checkpoint = checkpoint;
        this.kinds = kinds;
    }

    /** Reads what a rank holds, in its thread. */
    void read(ParallelContext context) throws IOException {
        ParallelParameters parameters = state.getParameters();
        OptimizerState held = state.getOptimizerState(context.getLocalIndex());
        for (Parameter parameter : parameters.getAll()) {
            NDArray value = parameters.getStore(context).getHeld(parameter);
            read(context, layout.ofWeight(parameter), value);
            String name = parameters.nameOf(parameter);
            held.free(name);
            if (!kinds.isEmpty() && isStored(parameter, kinds.get(0))) {
                readState(context, parameter, held);
            }
        }
    }

    private boolean isStored(Parameter parameter, StateKind kind) {
        return checkpoint.getTensors().containsKey(layout.nameOf(parameter, kind));
    }

    private void readState(ParallelContext context, Parameter parameter, OptimizerState held)
            throws IOException {
        String name = state.getParameters().nameOf(parameter);
        try (NDManager scope =
                state.getParameters().getStore(context).getManager().newSubManager()) {
            for (StateKind kind : kinds) {
                CutTensor stored = checkpoint.getTensors().get(layout.nameOf(parameter, kind));
                held.prepare(name, stored.type());
                Map<String, NDArray> arrays = held.get(name, scope);
                CutTensor own = layout.ofState(parameter, kind, stored.type());
                read(context, own, arrays.get(kind.name()));
            }
        }
    }

    /** Reads a rank's part into its memory, where it may have another shape. */
    private void read(ParallelContext context, CutTensor tensor, NDArray target)
            throws IOException {
        TensorView view = TensorView.of(target);
        if (target.getDataType() == tensor.type()
                && view.isContiguous()
                && !view.getDevice().isGpu()) {
            readInto(context, tensor, target);
        } else {
            readAndCopy(context, tensor, target);
        }
    }

    private void readInto(ParallelContext context, CutTensor tensor, NDArray target)
            throws IOException {
        if (tensor.isWhole()) {
            checkpoint.readInto(tensor.name(), target);
        } else {
            checkpoint.readInto(
                    tensor.name(),
                    tensor.axis(),
                    layout.rangesOf(tensor, context.getLocalIndex()),
                    target);
        }
    }

    private void readAndCopy(ParallelContext context, CutTensor tensor, NDArray target)
            throws IOException {
        NDManager manager = state.getParameters().getStore(context).getManager();
        try (Autograd.GradMode mode = Autograd.gradMode(false);
                NDManager scope = manager.newSubManager()) {
            NDArray part =
                    tensor.isWhole()
                            ? checkpoint.read(tensor.name(), scope)
                            : checkpoint.read(
                                    tensor.name(),
                                    tensor.axis(),
                                    layout.rangesOf(tensor, context.getLocalIndex()),
                                    scope);
            if (part.size() > 0) {
                target.set(new NDIndex("..."), part.reshape(target.getShape()));
            }
        }
    }
}
