package io.djltp.examples.lm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

/** Cuts a text into windows: of each the characters, and as labels those that follow them. */
final class Windows {

    private final short[] text;
    private final int context;

    Windows(short[] text, int context) {
        this.text = text;
        this.context = context;
    }

    /** Characters and labels, each [batch, context], of type int64. */
    record Batch(NDList data, NDList labels) {}

    /** Returns how many windows there are that begin with the text or where another ends. */
    int count() {
        return (text.length - 1) / context;
    }

    /** Returns the number of places where a window may begin. */
    int places() {
        return text.length - context;
    }

    /** Makes a batch of the windows that begin at some places. */
    Batch batch(NDManager manager, int... starts) {
        long[] data = new long[starts.length * context];
        long[] labels = new long[data.length];
        for (int row = 0; row < starts.length; row++) {
            for (int i = 0; i < context; i++) {
                data[row * context + i] = text[starts[row] + i];
                labels[row * context + i] = text[starts[row] + i + 1];
            }
        }
        Shape shape = new Shape(starts.length, context);
        NDArray ids = manager.create(data, shape);
        return new Batch(new NDList(ids), new NDList(manager.create(labels, shape)));
    }
}
