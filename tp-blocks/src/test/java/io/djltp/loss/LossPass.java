package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.Loss;

import io.djltp.collective.CollectiveCounts;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.Autograd;
import io.djltp.layout.ParallelMode;
import io.djltp.layout.ShardedLayout;
import io.djltp.rank.ParallelContext;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Ranks;

import org.testng.Assert;

import java.util.List;

/** A loss and its gradient, computed by ranks of which each has a slice of the classes. */
final class LossPass {

    private final float[] logits;
    private final Shape shape;
    private final NDManagerFunction labels;
    private DataType type = DataType.FLOAT32;
    private boolean layout = true;

    float value;
    float[] gradient;
    CollectiveCounts forward;
    CollectiveCounts backward;

    /** Makes an array. */
    @FunctionalInterface
    interface NDManagerFunction {
        NDArray create(NDManager manager);
    }

    LossPass(float[] logits, Shape shape, NDManagerFunction labels) {
        this.logits = logits;
        this.shape = shape;
        this.labels = labels;
    }

    LossPass(float[] logits, Shape shape, long... labels) {
        this(logits, shape, manager -> manager.create(labels));
    }

    LossPass withType(DataType dataType) {
        type = dataType;
        return this;
    }

    /** Hands every rank its slice without telling that it is one. */
    LossPass withoutLayout() {
        layout = false;
        return this;
    }

    LossPass run(int ranks, Loss loss) {
        List<float[][]> results =
                Ranks.run(ParallelMode.TENSOR, ranks, context -> runRank(context, loss));
        value = results.get(0)[0][0];
        gradient = new float[logits.length];
        int axis = shape.dimension() - 1;
        int classes = (int) shape.get(axis);
        for (int rank = 0; rank < ranks; rank++) {
            Assert.assertEquals(results.get(rank)[0][0], value, 0, "loss on rank " + rank);
            ShardRange own = Cut.balanced(classes, ranks).getRange(rank);
            for (int row = 0; row < logits.length / classes; row++) {
                System.arraycopy(
                        results.get(rank)[1],
                        row * (int) own.length(),
                        gradient,
                        row * classes + (int) own.start(),
                        (int) own.length());
            }
        }
        return this;
    }

    private float[][] runRank(ParallelContext context, Loss loss) {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray whole = manager.create(logits, shape).toType(type, false);
            int axis = shape.dimension() - 1;
            NDArray slice = Ranks.slice(whole, axis, context.getTensorGroup());
            slice.setRequiresGradient(true);
            if (layout && context.getSize() > 1) {
                context.getPass()
                        .setLayout(
                                slice,
                                new ShardedLayout(
                                        Cut.balanced(
                                                shape.get(axis),
                                                context.getTensorGroup().getSize())));
            }
            CollectiveCounts before = context.getCounts();
            NDArray scalar = loss.evaluate(new NDList(labels.create(manager)), new NDList(slice));
            CollectiveCounts between = context.getCounts();
            Assert.assertEquals(scalar.getDataType(), DataType.FLOAT32);
            Assert.assertEquals(scalar.getShape(), new Shape());
            Autograd.backward(scalar, scalar.onesLike());
            if (context.getRank() == 0) {
                forward = between.minus(before);
                backward = context.getCounts().minus(between);
            }
            NDArray result = Autograd.gradient(slice);
            result.attach(manager);
            Assert.assertEquals(result.getDataType(), type);
            Assert.assertEquals(result.getShape(), slice.getShape());
            return new float[][] {scalar.toFloatArray(), ArrayAssert.floats(result)};
        }
    }
}
