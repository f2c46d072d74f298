package io.djltp.nn.transformer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import ai.djl.util.Preconditions;

import io.djltp.cut.ShardRange;

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
public class PositionEmbedding extends AbstractBlock {

    private static final byte VERSION = 1;

    private final long positions;
    private final Parameter weight;

    /**
     * Creates a block.
     *
     * @param positions the length of the longest sequence
     */
    @SuppressWarnings("this-escape") // as in all of DJL's blocks: the parameter is complete
    public PositionEmbedding(long positions) {
        super(VERSION);
        Preconditions.checkArgument(
                positions > 0, "The number of positions must be 1 or more, not " + positions);
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
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray x = inputs.singletonOrThrow();
        check(x.getShape(), 0);
        ShardRange own = OwnTokens.of(parameterStore, x);
        check(x.getShape(), own.end());
        NDArray all = parameterStore.getValue(weight, x.getDevice(), training);
        return new NDList(x.add(all.get(new NDIndex().addSliceDim(own.start(), own.end()))));
    }

    private void check(Shape input, long length) {
        if (input.dimension() != 3 || length > positions) {
            throw new IllegalArgumentException(
                    "PositionEmbedding knows "
                            + positions
                            + " positions, and takes [B, T, D] with T up to that, not "
                            + input
                            + ": cut the sequences, or build it with more positions");
        }
    }

    /** {@inheritDoc} */
    @Override
    protected void prepare(Shape[] inputShapes) {
        check(inputShapes[0], inputShapes[0].get(1));
        weight.setShape(new Shape(positions, inputShapes[0].get(2)));
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {inputShapes[0]};
    }
}
