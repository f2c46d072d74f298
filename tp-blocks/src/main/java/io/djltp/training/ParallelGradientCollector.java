package io.djltp.training;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.training.GradientCollector;
import ai.djl.util.NativeResource;

import io.djltp.torch.Autograd;
import io.djltp.torch.JavaMemory;

/** Runs the backward passes of all ranks. */
@SuppressWarnings("try") // a call is begun by being open
final class ParallelGradientCollector implements GradientCollector {

    private final TrainingSteps steps;
    private final Autograd.GradMode mode;
    private final JavaMemory memory; // of what is computed from losses
    private boolean closed;

    ParallelGradientCollector(TrainingSteps steps) {
        this.steps = steps;
        try (OneCaller.Call call = steps.begin("newGradientCollector")) {
            steps.getPasses().setCollecting(true);
        }
        mode = Autograd.gradMode(true);
        memory = JavaMemory.keep();
    }

    /**
     * {@inheritDoc}
     *
     * @param target a loss of {@code trainer.getLoss()}, or a scalar computed from such losses
     */
    @Override
    public void backward(NDArray target) {
        try (OneCaller.Call call = steps.begin("newGradientCollector().backward")) {
            differentiate(target);
        }
    }

    private void differentiate(NDArray target) {
        steps.checkTrained();
        if (((NativeResource<?>) target).isReleased()) {
            throw new IllegalStateException(
                    "What is to be differentiated was closed: a loss is closed with the manager of"
                            + " the inputs. Go backward before it is closed");
        }
        float scale = steps.getLossScale().get(); // 1 if no loss is scaled
        try (NDArray gradient = target.onesLike()) {
            Autograd.backward(target, scale == 1 ? gradient : gradient.muli(scale));
        } catch (EngineException e) {
            throw new IllegalArgumentException(
                    "Only a loss of trainer.getLoss().evaluate(labels, predictions), or what is"
                            + " computed from it, can be differentiated, of predictions that"
                            + " trainer.forward(...) has returned, and if it depends on a parameter"
                            + " that is trained. The predictions themselves are values, no part of"
                            + " a graph; and so is a loss that was made of labels alone, or of what"
                            + " leaves the graph, such as stopGradient(), argMax() and, in DJL,"
                            + " toType(...)",
                    e);
        }
        steps.backward(steps.getPasses().findReached());
    }

    /** {@inheritDoc} */
    @Override
    public void zeroGradients() {
        steps.zeroGradients();
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        steps.getPasses().setCollecting(false);
        memory.close();
        mode.close();
    }
}
