package io.djltp.collective;

/** The operations in which all ranks of a group take part. */
public enum Collective {
    /** Every rank gets the reduction of all ranks' tensors. */
    ALL_REDUCE("all-reduce"),
    /** Every rank gets the tensors of all ranks, one after another. */
    ALL_GATHER("all-gather"),
    /** Every rank gets its share of the reduction of all ranks' tensors. */
    REDUCE_SCATTER("reduce-scatter"),
    /** Every rank gets the tensor of one rank. */
    BROADCAST("broadcast"),
    /** Every rank gets a share of every rank's tensor. */
    ALL_TO_ALL("all-to-all"),
    /** The ranks form groups of their own. */
    SPLIT("split"),
    /** No rank goes on before all have come. */
    BARRIER("barrier");

    private final String text;

    Collective(String text) {
        this.text = text;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return text;
    }
}
