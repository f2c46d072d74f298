package io.djltp.training;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;

import io.djltp.loss.MeanLosses;
import io.djltp.torch.Autograd;
import io.djltp.torch.HostReads;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;

/**
 * Whether a loss is the mean of those of its rows. DJL's softmax cross entropy is one unless its
 * class axis is that of the rows, which depends on the number of axes and which it does not tell:
 * it is tried with two rows of as many axes.
 */
@SuppressWarnings("try") // a scope is used by being open
final class RowMean {

    private static final double TOLERANCE = 1e-4; // float32; another axis is off by about 1

    private final Loss loss;
    private final Map<List<Shape>, Boolean> known = new ConcurrentHashMap<>();

    RowMean(Loss loss) {
        this.loss = loss;
    }

    /**
     * Returns whether the mean of the losses of two halves of a batch is that of the batch.
     *
     * @param labels the labels
     * @param predictions the outputs, of any number of rows
     * @return whether it is known to be
     */
    boolean isKnown(NDList labels, NDList predictions) {
        if (!MeanLosses.contains(loss) || loss.getClass() != SoftmaxCrossEntropyLoss.class) {
            return MeanLosses.contains(loss);
        }
        if (labels.size() != 1 || predictions.size() != 1) {
            return false; // which the loss refuses
        }
        List<Shape> shapes =
                Stream.of(labels.head(), predictions.head()).map(RowMean::twoRows).toList();
        return known.computeIfAbsent(shapes, key -> isMean(key.get(0), key.get(1)));
    }

    /** Returns a small shape of as many axes, in which an axis of length 1 stays one. */
    private static Shape twoRows(NDArray array) {
        long[] shape = array.getShape().getShape().clone();
        for (int i = 0; i < shape.length; i++) {
            shape[i] = i == 0 ? 2 : Math.min(2, shape[i]);
        }
        return new Shape(shape);
    }

    private boolean isMean(Shape labels, Shape predictions) {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu());
                Autograd.GradMode mode = Autograd.gradMode(false)) {
            NDArray classes = manager.zeros(labels, DataType.FLOAT32).add(1);
            classes.set(new NDIndex(0), 0); // no two rows alike, and classes that there are
            NDArray values =
                    manager.arange(predictions.size())
                            .toType(DataType.FLOAT32, false)
                            .mul(1.7f)
                            .sin() // of one size: no row's is the largest by far
                            .reshape(predictions);
            double first = of(classes.get("0:1"), values.get("0:1"));
            double second = of(classes.get("1:2"), values.get("1:2"));
            double both = of(classes, values);
            return Math.abs(both - (first + second) / 2) <= TOLERANCE * Math.max(1, Math.abs(both));
        } catch (RuntimeException e) {
            return false; // not of one row alone, or of no such shapes: the loss of the batch tells
        }
    }

    private double of(NDArray labels, NDArray predictions) {
        return HostReads.number(loss.evaluate(new NDList(labels), new NDList(predictions)));
    }
}
