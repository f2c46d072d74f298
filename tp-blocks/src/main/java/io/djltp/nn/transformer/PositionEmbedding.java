package io.djltp.nn.transformer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;

import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;

/**
 * Adds to each position of a sequence what is learned of it: {@code y_t = x_t + w_t}.
 *
 * <ul>
 *   <li>input: [B, T, D], T at most the number of positions; in a sequence-parallel region a rank's
 *       tokens, which get the positions that they have in the whole sequence
 *   <li>weight: [positions, D], the same on all ranks
 *   <li>output: [B, T, D]
 * </ul>
 *
 * <p>Collectives: none. Positions that turn queries and keys instead are a {@link
 * io.djltp.nn.attention.RotaryEmbedding}.
 */
public class PositionEmbedding extends AbstractPositions {

    private final long positions;
    private final Parameter weight;

    /**
     * Creates a block.
     *
     * @param positions the length of the longest sequence
     */
    @SuppressWarnings("this-escape") // as in all of DJL's blocks: the parameter is complete
    public PositionEmbedding(long positions) {
        Errors.check(positions > 0, "The number of positions must be 1 or more, not %s", positions);
        this.positions = positions;
        weight =
                addParameter(
                        Parameter.builder()
                                .setName("weight")
                                .setType(Parameter.Type.WEIGHT)
                                .build());
    }

    /** {@inheritDoc} */
    @Override
    NDArray of(ParameterStore store, NDArray x, ShardRange own, boolean training) {
        NDArray all = store.getValue(weight, x.getDevice(), training);
        return all.get(new NDIndex().addSliceDim(own.start(), own.end()));
    }

    /** {@inheritDoc} */
    @Override
    void check(Shape input, long end) {
        if (input.dimension() != 3 || end > positions) {
            throw Errors.argument(
                    "PositionEmbedding knows %s positions, and takes [B, T, D] with T up to that,"
                            + " not %s: cut the sequences, or build it with more positions",
                    positions, input);
        }
    }

    /** {@inheritDoc} */
    @Override
    protected void prepare(Shape[] inputShapes) {
        check(inputShapes[0], inputShapes[0].get(1));
        weight.setShape(new Shape(positions, inputShapes[0].get(2)));
    }
}
