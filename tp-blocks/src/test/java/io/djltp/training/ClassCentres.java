package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.Autograd;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.ParticipantStep;
import io.djltp.rank.StepParticipant;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * A block with a state of its own on each rank: it subtracts from each row the nearest of some
 * centres, and a step moves each centre to the mean of all rows that it was ever the nearest of.
 * The library knows nothing of it.
 */
final class ClassCentres extends AbstractBlock {

    private final Parameter table;

    ClassCentres(int centres, int features) {
        super((byte) 1);
        table =
                addParameter(
                        Parameter.builder()
                                .setName("centres")
                                .setType(Parameter.Type.OTHER)
                                .optShape(new Shape(centres, features))
                                .build());
    }

    /** Returns the centres: [centres, features]. */
    Parameter table() {
        return table;
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray x = inputs.singletonOrThrow();
        NDArray values = store.getValue(table, x.getDevice(), training);
        ParallelContext context = RankParameterStore.contextOf(store);
        Moving moving =
                context.getParticipants().get(table, Moving.class, () -> new Moving(table, values));
        int[] nearest = nearest(x.toFloatArray(), values.toFloatArray(), moving.features);
        if (training && context.getPass().getRows() > 0) { // a rank may have a row of another's
            moving.saw.add(sums(x.toFloatArray(), nearest, moving));
        }
        NDArray detached = Autograd.detach(values, x.getManager());
        return new NDList(x.sub(detached.get(x.getManager().create(nearest))));
    }

    static int[] nearest(float[] x, float[] centres, int features) {
        int[] nearest = new int[x.length / features];
        for (int row = 0; row < nearest.length; row++) {
            double least = Double.POSITIVE_INFINITY;
            for (int k = 0; k < centres.length / features; k++) {
                double distance = 0;
                for (int i = 0; i < features; i++) {
                    double d = x[row * features + i] - centres[k * features + i];
                    distance += d * d;
                }
                if (distance < least) {
                    least = distance;
                    nearest[row] = k;
                }
            }
        }
        return nearest;
    }

    /** Returns for each centre the sum of its rows, and how many they are. */
    private static float[] sums(float[] x, int[] nearest, Moving moving) {
        int features = moving.features;
        float[] sums = new float[moving.uses.length * (features + 1)];
        for (int row = 0; row < nearest.length; row++) {
            int start = nearest[row] * (features + 1);
            for (int i = 0; i < features; i++) {
                sums[start + i] += x[row * features + i];
            }
            sums[start + features]++;
        }
        return sums;
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }

    /** {@inheritDoc} */
    @Override
    public void initializeChildBlocks(NDManager manager, DataType dataType, Shape... inputShapes) {
        // there are none
    }

    /** What a rank keeps of the centres until the step, and from step to step. */
    static final class Moving implements StepParticipant {

        final int features;
        final float[] uses; // by centre, in all steps
        final List<float[]> saw = new ArrayList<>();
        boolean closed;
        private final Parameter table;

        Moving(Parameter table, NDArray values) {
            this.table = table;
            features = (int) values.getShape().get(1);
            uses = new float[(int) values.getShape().get(0)];
        }

        /** {@inheritDoc} */
        @Override
        public List<Parameter> getParameters() {
            return List.of(table);
        }

        /** {@inheritDoc} */
        @Override
        public void zeroGradient() {
            saw.clear();
        }

        /** {@inheritDoc} */
        @Override
        public void step(ParticipantStep step) {
            float[] total = new float[uses.length * (features + 1)];
            saw.forEach(sums -> add(total, sums));
            saw.clear();
            if (step.getUpdate(table) == null) {
                return; // frozen
            }
            NDArray values = step.getValue(table);
            try (NDManager scope = values.getManager().newSubManager()) {
                NDArray sums = scope.create(total);
                Communicator group = step.getGradientGroup(table);
                if (group != null) {
                    group.allReduce(sums, ReduceOp.SUM);
                }
                float[] change = change(values.toFloatArray(), sums.toFloatArray());
                Autograd.detach(values, scope).addi(scope.create(change, values.getShape()));
            }
        }

        private static void add(float[] total, float[] summand) {
            for (int i = 0; i < total.length; i++) {
                total[i] += summand[i];
            }
        }

        private float[] change(float[] centres, float[] sums) {
            float[] change = new float[centres.length];
            for (int k = 0; k < uses.length; k++) {
                float rows = sums[k * (features + 1) + features];
                uses[k] += rows;
                for (int i = 0; i < features && rows > 0; i++) {
                    float sum = sums[k * (features + 1) + i];
                    change[k * features + i] = (sum - rows * centres[k * features + i]) / uses[k];
                }
            }
            return change;
        }

        /** {@inheritDoc} */
        @Override
        public Map<String, NDArray> getState(NDManager manager) {
            return Map.of("uses", manager.create(uses));
        }

        /** {@inheritDoc} */
        @Override
        public void setState(Map<String, NDArray> state) {
            System.arraycopy(state.get("uses").toFloatArray(), 0, uses, 0, uses.length);
        }

        /** {@inheritDoc} */
        @Override
        public void close() {
            closed = true;
        }
    }
}
