package io.djltp.cost;

/**
 * What the parameters take on one rank, in bytes.
 *
 * @param weights its shards and replicas
 * @param gradients their gradients, between a backward pass and the step
 * @param state what the optimizer keeps of them after the first step
 */
public record RankCost(long weights, long gradients, long state) {

    /**
     * Returns the sum.
     *
     * @return the bytes
     */
    public long getTotal() {
        return weights + gradients + state;
    }

    /**
     * Returns the sum of two.
     *
     * @param other more on the same rank
     * @return the sum
     */
    public RankCost plus(RankCost other) {
        return new RankCost(
                weights + other.weights, gradients + other.gradients, state + other.state);
    }
}
