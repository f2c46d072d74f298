package io.djltp.exchange;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.torch.Autograd;
import io.djltp.torch.BFloat16;
import io.djltp.torch.TensorBuffers;
import io.djltp.torch.TensorView;

import java.io.IOException;
import java.nio.ByteBuffer;

/** The rows of weights as bytes, a chunk at a time. */
@SuppressWarnings("try") // a scope is used by being open
final class RowStream {

    private static final long CHUNK = 1 << 22; // bytes

    /** Where the bytes go. */
    interface Sink {

        void write(ByteBuffer bytes) throws IOException;
    }

    private final Sink sink;

    RowStream(Sink sink) {
        this.sink = sink;
    }

    /** Writes a tensor. */
    void write(OutputTensor tensor) throws IOException {
        long rows = 0;
        try (NDManager manager = NDManager.newBaseManager(Device.cpu());
                Autograd.GradMode mode = Autograd.gradMode(false)) {
            for (OutputTensor.Piece piece : tensor.pieces()) {
                if (tensor.transposed()) {
                    NDArray whole = piece.source().rows(0, piece.to(), manager);
                    write(whole.transpose(), tensor);
                    rows = tensor.shape().get(0);
                } else {
                    write(piece, tensor, manager);
                    rows += piece.to() - piece.from();
                }
                piece.source().release();
            }
            long left = tensor.shape().get(0) - rows;
            long step = step(tensor);
            for (; left > 0; left -= step) { // what is padded
                long[] shape = tensor.shape().getShape().clone();
                shape[0] = Math.min(step, left);
                try (NDManager chunk = manager.newSubManager()) {
                    write(chunk.zeros(new Shape(shape)), tensor);
                }
            }
        }
    }

    private static long step(OutputTensor tensor) {
        long row = tensor.bytes() / Math.max(1, tensor.shape().get(0));
        return Math.max(1, CHUNK / Math.max(1, row));
    }

    private void write(OutputTensor.Piece piece, OutputTensor tensor, NDManager manager)
            throws IOException {
        long step = step(tensor);
        for (long row = piece.from(); row < piece.to(); row += step) {
            try (NDManager chunk = manager.newSubManager()) {
                long count = Math.min(step, piece.to() - row);
                write(piece.source().rows(row, count, chunk), tensor);
            }
        }
    }

    private void write(NDArray rows, OutputTensor tensor) throws IOException {
        NDArray dense = rows;
        if (!TensorView.of(rows).isContiguous()) {
            dense = rows.getManager().create(rows.getShape(), rows.getDataType());
            dense.set(new NDIndex("..."), rows);
        }
        SixteenBits.check(dense, tensor.type(), tensor.name());
        NDArray converted =
                tensor.type() == DataType.BFLOAT16
                        ? BFloat16.bitsOf(dense, rows.getManager())
                        : dense.toType(tensor.type(), false);
        for (ByteBuffer bytes : TensorBuffers.of(converted)) {
            sink.write(bytes);
        }
    }
}
