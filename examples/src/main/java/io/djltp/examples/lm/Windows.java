package io.djltp.examples.lm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import java.util.stream.IntStream;

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

    /** Returns where windows begin that do not overlap, at most so many, all over the text. */
    int[] spread(int most) {
        int all = (text.length - 1) / context;
        int count = Math.min(most, all);
        return IntStream.range(0, count)
                .map(i -> (int) ((long) i * all / count) * context)
                .toArray();
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
