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
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Ranks;

import org.testng.Assert;

import java.util.List;
import java.util.function.Function;

/** A loss and its gradient, computed by ranks of which each has a slice of the classes. */
final class LossPass {

    private final float[] logits;
    private final Shape shape;
    private final Function<NDManager, NDArray> labels;
    private DataType type = DataType.FLOAT32;
    private boolean layout = true;
    float value;
    Shape lossShape;
    float[] gradient;
    CollectiveCounts forward;
    CollectiveCounts backward;

    LossPass(float[] logits, Shape shape, Function<NDManager, NDArray> labels) {
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

    /** Returns a rank's slice of the classes, known to be one. */
    static NDArray slice(ParallelContext context, NDArray whole) {
        int axis = whole.getShape().dimension() - 1;
        NDArray slice = Ranks.slice(whole, axis, context.getTensorGroup());
        Cut cut = Cut.balanced(whole.getShape().get(axis), context.getTensorGroup().getSize());
        context.getPass().setLayout(slice, new ShardedLayout(cut));
        return slice;
    }

    /** Computes on some ranks, or on none as under DJL's own trainer. */
    LossPass run(int ranks, Loss loss) {
        if (ranks == 0) {
            gradient = runRank(null, loss);
            return this;
        }
        List<float[]> results =
                Ranks.run(ParallelMode.TENSOR, ranks, context -> runRank(context, loss));
        gradient = new float[logits.length];
        int classes = (int) shape.get(shape.dimension() - 1);
        for (int rank = 0; rank < ranks; rank++) {
            float[] part = results.get(rank);
            Assert.assertEquals(part[part.length - 1], value, 0, "loss on rank " + rank);
            ShardRange own = Cut.balanced(classes, ranks).getRange(rank);
            int length = (int) own.length();
            for (int row = 0; row < logits.length / classes; row++) {
                int start = row * classes + (int) own.start();
                System.arraycopy(part, row * length, gradient, start, length);
            }
        }
        return this;
    }

    /** Returns the gradient of a rank's slice, and then the loss. */
    @SuppressWarnings("try") // a scope is used by being open
    private float[] runRank(ParallelContext context, Loss loss) {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray slice = manager.create(logits, shape).toType(type, true);
            if (context != null) {
                slice =
                        layout && context.getSize() > 1
                                ? slice(context, slice)
                                : Ranks.slice(
                                        slice, shape.dimension() - 1, context.getTensorGroup());
            }
            slice.setRequiresGradient(true);
            CollectiveCounts before = context == null ? null : context.getCounts();
            NDArray losses = loss.evaluate(new NDList(labels.apply(manager)), new NDList(slice));
            CollectiveCounts between = context == null ? null : context.getCounts();
            Assert.assertEquals(losses.getDataType(), DataType.FLOAT32);
            Autograd.backward(losses, losses.onesLike());
            NDArray result = Autograd.gradient(slice);
            result.attach(manager);
            Assert.assertEquals(result.getDataType(), type);
            Assert.assertEquals(result.getShape(), slice.getShape());
            float sum = losses.sum().getFloat();
            if (context == null || context.getRank() == 0) {
                value = sum;
                lossShape = losses.getShape();
            }
            float[] found = ArrayAssert.floats(result);
            if (context == null) {
                return found;
            }
            if (context.getRank() == 0) {
                forward = between.minus(before);
                backward = context.getCounts().minus(between);
            }
            float[] both = java.util.Arrays.copyOf(found, found.length + 1);
            both[found.length] = sum;
            return both;
        }
    }
}
