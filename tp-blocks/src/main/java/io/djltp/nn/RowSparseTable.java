package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;
import ai.djl.util.NativeResource;

import io.djltp.collective.Communicator;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.update.EmbeddingBags;
import io.djltp.internal.update.GradientScale;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.rank.ParticipantStep;
import io.djltp.rank.StepParticipant;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;

/**
 * A rank's table of which a step uses few rows: its gradient is that of the sums that were made of
 * the rows, and the table itself has none.
 *
 * <p>All ranks update their replicas alike: from the gradients of the sums of the whole batch,
 * which are far smaller than the table. Where the table is frozen when a step comes, gradients wait
 * until it is thawed.
 */
final class RowSparseTable implements StepParticipant {

    private final Parameter parameter;
    private final List<Bags> pending = new ArrayList<>();

    /**
     * Creates a table.
     *
     * @param parameter the parameter
     */
    RowSparseTable(Parameter parameter) {
        this.parameter = parameter;
    }

    /**
     * What a forward pass has made of the table.
     *
     * @param ids the rows of the bags, of one bag after the other, 0 for none
     * @param width the places of a bag
     * @param sums the sums: a leaf of the graph
     * @param output what the pass has of them, which is closed with it
     */
    record Bags(int[] ids, int width, NDArray sums, NDArray output) {

        /** Returns the gradient, to be closed, or null if no backward pass has come. */
        NDArray gradient() {
            return Autograd.gradient(sums);
        }

        /** Returns whether the pass was closed without a backward pass. */
        boolean isOver() {
            return ((NativeResource<?>) output).isReleased() && !hasGradient();
        }

        boolean hasGradient() {
            try (NDArray gradient = gradient()) {
                return gradient != null;
            }
        }
    }

    /** {@inheritDoc} */
    @Override
    public List<Parameter> getParameters() {
        return List.of(parameter);
    }

    /**
     * Notes what a forward pass has made of the table, until the step, or until the pass is closed
     * without a backward pass.
     *
     * @param bags the sums, which this closes
     */
    void add(Bags bags) {
        forget(Bags::isOver);
        pending.add(bags);
    }

    /** {@inheritDoc} */
    @Override
    public void beginBackward() {
        pending.forEach(bags -> bags.sums().setRequiresGradient(parameter.requiresGradient()));
    }

    /**
     * {@inheritDoc}
     *
     * <p>Gradients of backward passes to come will count.
     */
    @Override
    public void zeroGradient() {
        if (parameter.requiresGradient()) {
            forget(Bags::hasGradient);
        }
    }

    private void forget(Predicate<Bags> which) {
        pending.removeIf(
                bags -> {
                    boolean forgotten = which.test(bags);
                    if (forgotten) {
                        bags.sums().close();
                    }
                    return forgotten;
                });
    }

    /** {@inheritDoc} */
    @Override
    public boolean unscale(float factor) {
        boolean finite = true;
        for (Bags bags : pending) {
            try (NDArray gradient = bags.gradient()) {
                finite &= gradient == null || GradientScale.takeFrom(gradient, factor);
            }
        }
        return finite;
    }

    /** {@inheritDoc} */
    @Override
    public void step(ParticipantStep step) {
        WeightUpdate update = step.getUpdate(parameter);
        NDArray values = step.getValue(parameter);
        if (update == null) {
            forget(bags -> !bags.hasGradient());
            return;
        }
        try (NDManager scope = values.getManager().newSubManager()) {
            TableGradient gradient = TableGradient.of(pending, values, scope);
            Communicator group = step.getGradientGroup(parameter);
            if (group != null) {
                group.setIssuer("the gradient of " + step.nameOf(parameter));
                gradient = gradient.ofAllRanks(group, scope);
            }
            long rows = values.getShape().get(0);
            new EmbeddingBags(gradient.ids(), gradient.width(), rows)
                    .update(values, gradient.ofSums(), update);
        } finally {
            close();
        }
    }

    /** Forgets the sums and their gradients. */
    @Override
    public void close() {
        pending.forEach(bags -> bags.sums().close());
        pending.clear();
    }
}
