package io.djltp.checkpoint;

import static io.djltp.testing.Blocks.newColumn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.cut.ShardRange;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.ParticipantStep;
import io.djltp.internal.rank.StepParticipant;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.sharding.ShardingStrategy;

import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;

/**
 * A layer whose ranks count something for each row of its weight: a kind of state that the library
 * does not know.
 */
final class CountedRows extends AbstractBlock {

    private final ColumnParallelLinear layer;

    CountedRows(long units) {
        layer =
                addChildBlock(
                        "layer",
                        newColumn(units).optBatchShardedInput(true).optGatherOutput(true).build());
    }

    private Parameter weight() {
        return layer.getDirectParameters().get("weight");
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> p) {
        ParallelContext context = RankParameterStore.contextOf(store);
        context.getParticipants().get(this, Counts.class, () -> new Counts(context, weight()));
        return layer.forward(store, inputs, training);
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return layer.getOutputShapes(inputShapes);
    }

    /** {@inheritDoc} */
    @Override
    public void initializeChildBlocks(NDManager manager, DataType type, Shape... inputShapes) {
        layer.initialize(manager, type, inputShapes);
    }

    /** The counts of the rows that a rank has. */
    static final class Counts implements StepParticipant {

        final Parameter weight;
        final float[] counts;
        final List<ShardRange> ranges;
        long steps;

        Counts(ParallelContext context, Parameter weight) {
            this.weight = weight;
            Shape shape = weight.getArray().getShape();
            int size = context.getTensorGroup().getSize();
            ranges =
                    size == 1
                            ? List.of(new ShardRange(0, shape.get(0)))
                            : ShardingStrategy.rowwise()
                                    .cut(shape, size)
                                    .getRanges(context.getTensorGroup().getRank());
            counts = new float[(int) ranges.get(0).length()];
        }

        /** {@inheritDoc} */
        @Override
        public Collection<Parameter> getParameters() {
            return List.of();
        }

        /** {@inheritDoc} */
        @Override
        public void zeroGradient() {}

        /** {@inheritDoc} */
        @Override
        public void step(ParticipantStep step) {
            steps++;
            for (int i = 0; i < counts.length; i++) {
                counts[i] += ranges.get(0).start() + i + 1;
            }
        }

        /** Returns whether each row was counted as often. */
        boolean has(int number) {
            float[] expected = new float[counts.length];
            for (int i = 0; i < expected.length; i++) {
                expected[i] = number * (ranges.get(0).start() + i + 1);
            }
            return steps == number && Arrays.equals(counts, expected);
        }

        /** {@inheritDoc} */
        @Override
        public Map<String, NDArray> getState(NDManager manager) {
            return Map.of(
                    "counts", manager.create(counts), "steps", manager.create(new long[] {steps}));
        }

        /** {@inheritDoc} */
        @Override
        public Map<String, StateCut> getStateCuts() {
            return Map.of("counts", new StateCut(weight, 0));
        }

        /** {@inheritDoc} */
        @Override
        public void setState(Map<String, NDArray> state) {
            steps = state.get("steps").toLongArray()[0];
            float[] values = state.get("counts").toFloatArray();
            System.arraycopy(values, 0, counts, 0, counts.length);
        }

        /** {@inheritDoc} */
        @Override
        public void close() {}
    }
}
