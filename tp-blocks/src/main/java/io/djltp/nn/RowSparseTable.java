package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.torch.Autograd;

import java.util.ArrayList;
import java.util.List;

/**
 * A rank's table of which a step uses few rows: its gradient is that of the sums that were made of
 * the rows, and the table itself has none.
 */
public final class RowSparseTable implements AutoCloseable {

    private final Parameter parameter;
    private final List<Bags> pending = new ArrayList<>();

    /**
     * Creates a table.
     *
     * @param parameter the parameter
     */
    public RowSparseTable(Parameter parameter) {
        this.parameter = parameter;
    }

    /**
     * What a forward pass has made of the table.
     *
     * @param ids the rows of the bags, of one bag after the other, 0 for none
     * @param width the places of a bag
     * @param sums the sums: a leaf of the graph
     */
    public record Bags(int[] ids, int width, NDArray sums) {

        /**
         * Returns the gradient of the sums.
         *
         * @return the gradient, to be closed, or {@code null} if no backward pass has come
         */
        public NDArray gradient() {
            return Autograd.gradient(sums);
        }
    }

    /**
     * Returns the parameter.
     *
     * @return the parameter
     */
    public Parameter getParameter() {
        return parameter;
    }

    /**
     * Notes what a forward pass has made of the table, until {@link #clear()}.
     *
     * @param bags the sums, which this closes
     */
    public void add(Bags bags) {
        pending.add(bags);
    }

    /**
     * Returns what forward passes have made since the last {@link #clear()}.
     *
     * @return the sums
     */
    public List<Bags> getPending() {
        return pending;
    }

    /** Forgets the gradients that are there; those of backward passes to come will count. */
    public void zeroGradient() {
        pending.removeIf(
                bags -> {
                    try (NDArray gradient = bags.gradient()) {
                        if (gradient != null) {
                            bags.sums().close();
                        }
                        return gradient != null;
                    }
                });
    }

    /** Forgets the sums and their gradients. */
    public void clear() {
        pending.forEach(bags -> bags.sums().close());
        pending.clear();
    }

    /** Frees the sums. */
    @Override
    public void close() {
        clear();
    }
}
