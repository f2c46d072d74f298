package io.djltp.exchange;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.exchange.NameMapping.Match;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.BFloat16;
import io.djltp.internal.torch.TensorBuffers;
import io.djltp.internal.torch.TensorView;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Locale;

/**
 * A tensor that is to be written.
 *
 * @param name its name
 * @param type its data type
 * @param shape its shape
 * @param pieces the rows that it has, one after another; what is missing behind them is 0
 * @param transposed whether its rows are the columns of the one parameter that it has
 */
record OutputTensor(
        String name, DataType type, Shape shape, List<Piece> pieces, boolean transposed) {

    private static final long CHUNK = 1 << 22; // bytes

    // from here on the nearest is infinite
    private static final float END_OF_FLOAT16 = 65520;
    private static final float END_OF_BFLOAT16 = 0x1.ffp127f;

    /**
     * Consecutive rows of a weight.
     *
     * @param source the weight
     * @param from the first row
     * @param to the row behind the last
     */
    record Piece(RowSource source, long from, long to) {}

    /** Where the bytes go. */
    interface Sink {

        void write(ByteBuffer bytes) throws IOException;
    }

    /** Returns a whole weight. */
    static OutputTensor of(String name, DataType type, RowSource weight) {
        Piece all = new Piece(weight, 0, Match.rows(weight.shape()));
        return new OutputTensor(name, type, weight.shape(), List.of(all), false);
    }

    /** Returns the number of bytes. */
    long bytes() {
        return shape.size() * type.getNumOfBytes();
    }

    /** Writes the tensor, a chunk of rows at a time. */
    @SuppressWarnings("try") // a scope is used by being open
    void write(Sink sink) throws IOException {
        long done = 0;
        long step = Math.max(1, CHUNK / Math.max(1, bytes() / Math.max(1, Match.rows(shape))));
        try (NDManager manager = NDManager.newBaseManager(Device.cpu());
                Autograd.GradMode mode = Autograd.gradMode(false)) {
            for (Piece piece : pieces) {
                if (transposed) {
                    write(piece.source().reader().rows(0, piece.to(), manager).transpose(), sink);
                    done = Match.rows(shape);
                } else {
                    for (long row = piece.from(); row < piece.to(); row += step) {
                        try (NDManager chunk = manager.newSubManager()) {
                            long count = Math.min(step, piece.to() - row);
                            write(piece.source().reader().rows(row, count, chunk), sink);
                        }
                    }
                    done += piece.to() - piece.from();
                }
                piece.source().release().run();
            }
            for (long left = Match.rows(shape) - done; left > 0; left -= step) { // what is padded
                long[] padded = shape.getShape().clone();
                padded[0] = Math.min(step, left);
                try (NDManager chunk = manager.newSubManager()) {
                    write(chunk.zeros(new Shape(padded)), sink);
                }
            }
        }
    }

    private void write(NDArray rows, Sink sink) throws IOException {
        NDArray dense = rows;
        if (!TensorView.of(rows).isContiguous()) {
            dense = rows.getManager().create(rows.getShape(), rows.getDataType());
            dense.set(new NDIndex("..."), rows);
        }
        checkHolds(dense);
        NDArray converted =
                type == DataType.BFLOAT16
                        ? BFloat16.bitsOf(dense, rows.getManager())
                        : dense.toType(type, false);
        for (ByteBuffer bytes : TensorBuffers.of(converted)) {
            sink.write(bytes);
        }
    }

    /**
     * Refuses finite numbers that a type of 16 bits would make infinite; infinite ones may be
     * meant.
     */
    private void checkHolds(NDArray values) throws IOException {
        boolean half = type == DataType.FLOAT16;
        if (!half && type != DataType.BFLOAT16 || values.getDataType() == DataType.FLOAT16) {
            return;
        }
        NDArray sizes = values.abs();
        NDArray tooLarge =
                sizes.gte(half ? END_OF_FLOAT16 : END_OF_BFLOAT16)
                        .logicalAnd(sizes.lt(Float.POSITIVE_INFINITY));
        if (tooLarge.any().getBoolean()) {
            Number most = sizes.booleanMask(tooLarge).max().toArray()[0];
            throw new IOException(
                    String.format(
                            Locale.ROOT,
                            "tensor %s has numbers that %s cannot hold, such as %s: it ends at %s."
                                    + " Nothing is written; write %s",
                            name,
                            half ? "float16" : "bfloat16",
                            most,
                            half ? "65504" : "3.3895e38",
                            half ? "bfloat16 or float32" : "float32"));
        }
    }
}
