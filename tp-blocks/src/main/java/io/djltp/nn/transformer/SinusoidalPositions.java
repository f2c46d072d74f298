package io.djltp.nn.transformer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.ParameterStore;

import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;

/**
 * Adds to each position of a sequence sines and cosines of it: {@code y_t = x_t + p_t} with {@code
 * p_t[2i] = sin(t / base^(2i/D))} and {@code p_t[2i + 1] = cos(t / base^(2i/D))}.
 *
 * <ul>
 *   <li>input: [B, T, D], any T; in a sequence-parallel region a rank's tokens, which get the
 *       positions that they have in the whole sequence
 *   <li>output: the same shape
 * </ul>
 *
 * <p>No parameters. Collectives: none. Learned positions are a {@link PositionEmbedding}, those
 * that turn queries and keys a {@link io.djltp.nn.attention.RotaryEmbedding}.
 *
 * <p>Vaswani et al., 2017, <a href="https://arxiv.org/abs/1706.03762">arXiv:1706.03762</a>, section
 * 3.5.
 */
public class SinusoidalPositions extends AbstractPositions {

    private final double base;

    /** Creates a block with the base of the paper, 10,000. */
    public SinusoidalPositions() {
        this(10_000);
    }

    /**
     * Creates a block.
     *
     * @param base the wavelengths go from 2 pi to 2 pi base
     */
    public SinusoidalPositions(double base) {
        Errors.check(base > 1, "The base of sinusoidal positions must be above 1, not %s", base);
        this.base = base;
    }

    /** {@inheritDoc} */
    @Override
    NDArray of(ParameterStore store, NDArray x, ShardRange own, boolean training) {
        Shape shape = new Shape(own.length(), x.getShape().get(2));
        NDArray waves = x.getManager().create(waves(own, (int) shape.get(1)), shape);
        return waves.toType(x.getDataType(), false);
    }

    private float[] waves(ShardRange positions, int features) {
        float[] waves = new float[Math.toIntExact(positions.length() * features)];
        for (int i = 0; i < features; i++) {
            double frequency = Math.pow(base, -(double) (i / 2 * 2) / features);
            for (long t = positions.start(); t < positions.end(); t++) {
                double angle = t * frequency;
                double wave = i % 2 == 0 ? Math.sin(angle) : Math.cos(angle);
                waves[(int) (t - positions.start()) * features + i] = (float) wave;
            }
        }
        return waves;
    }

    /** {@inheritDoc} */
    @Override
    void check(Shape input, long end) {
        Errors.check(input.dimension() == 3, "SinusoidalPositions takes [B, T, D], not %s", input);
    }

    /** {@inheritDoc} */
    @Override
    protected void prepare(Shape[] inputShapes) {
        check(inputShapes[0], 0);
    }
}
