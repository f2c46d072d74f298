package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.ParticipantStep;
import io.djltp.internal.rank.StepParticipant;
import io.djltp.internal.torch.Autograd;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * A block with a state of its own on each rank: it subtracts from each row a mean, which a step
 * moves to the mean of all rows that it ever saw. The library knows nothing of it.
 */
final class RunningMean extends AbstractBlock {

    private final Parameter mean;

    RunningMean(int features) {
        super((byte) 1);
        mean =
                addParameter(
                        Parameter.builder()
                                .setName("mean")
                                .setType(Parameter.Type.OTHER)
                                .optShape(new Shape(1, features))
                                .build());
    }

    Parameter mean() {
        return mean;
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> p) {
        NDArray x = inputs.singletonOrThrow();
        NDArray value = store.getValue(mean, x.getDevice(), training);
        ParallelContext context = RankParameterStore.contextOf(store);
        Moving moving = context.getParticipants().get(mean, Moving.class, () -> new Moving(mean));
        if (training && context.getPass().getRows() > 0) { // a rank may have a row of another's
            float[] values = x.toFloatArray(); // a sum over the rows of DJL's would throw
            float[] sums = new float[moving.size() + 1];
            for (int i = 0; i < values.length; i++) {
                sums[i % moving.size()] += values[i];
            }
            sums[moving.size()] = x.getShape().get(0);
            moving.saw.add(sums);
        }
        return new NDList(x.sub(Autograd.detach(value, x.getManager())));
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }

    /** What a rank keeps of the mean until the step, and from step to step. */
    static final class Moving implements StepParticipant {
        final List<float[]> saw = new ArrayList<>(); // sums of rows, and how many they are
        boolean closed;
        private final Parameter mean;
        private float rows; // in all steps

        Moving(Parameter mean) {
            this.mean = mean;
        }

        private int size() {
            return (int) mean.getShape().get(1);
        }

        @Override
        public List<Parameter> getParameters() {
            return List.of(mean);
        }

        @Override
        public void zeroGradient() {
            saw.clear();
        }

        @Override
        public void step(ParticipantStep step) {
            NDArray value = step.getValue(mean);
            try (NDManager scope = value.getManager().newSubManager()) {
                NDArray total = scope.zeros(new Shape(size() + 1));
                saw.forEach(sums -> total.addi(scope.create(sums)));
                saw.clear();
                if (step.getUpdate(mean) == null) {
                    return; // frozen
                }
                Communicator group = step.getGradientGroup(mean);
                if (group != null) {
                    group.allReduce(total, ReduceOp.SUM);
                }
                float count = total.getFloat(size());
                rows += count;
                NDArray sums = total.get("0:" + size()).reshape(1, size());
                NDArray own = Autograd.detach(value, scope);
                own.addi(sums.sub(own.mul(count)).div(rows));
            }
        }

        @Override
        public Map<String, NDArray> getState(NDManager manager) {
            return Map.of("rows", manager.create(rows));
        }

        @Override
        public void setState(Map<String, NDArray> state) {
            rows = state.get("rows").getFloat();
        }

        @Override
        public void close() {
            closed = true;
        }
    }
}
