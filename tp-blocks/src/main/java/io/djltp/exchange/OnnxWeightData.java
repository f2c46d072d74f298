package io.djltp.exchange;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.onnx.proto.OnnxMl.StringStringEntryProto;
import ai.onnx.proto.OnnxMl.TensorProto;

import com.google.protobuf.ByteString;

import io.djltp.exchange.RowSource.ParameterRows;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * The weights of an ONNX file: in it, or one after another in a second file beside it, each from a
 * multiple of 4096 bytes on, so that it can be mapped into memory.
 */
final class OnnxWeightData implements Closeable {

    /** What the name of the file has behind that of the model. */
    static final String SUFFIX = ".data";

    private static final long PAGE = 4096;

    private final Path file;
    private final FileChannel channel; // or null: in the file itself

    OnnxWeightData(Path model, boolean external) throws IOException {
        file = model.resolveSibling(model.getFileName() + SUFFIX);
        channel =
                external
                        ? FileChannel.open(
                                file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)
                        : null;
    }

    /** Adds a weight, whose bytes are written now where they have a file of their own. */
    TensorProto add(String name, Parameter parameter) throws IOException {
        Shape shape = parameter.getArray().getShape();
        OutputTensor tensor =
                OutputTensor.of(name, DataType.FLOAT32, new ParameterRows(parameter, null));
        TensorProto.Builder proto =
                TensorProto.newBuilder()
                        .setName(name)
                        .setDataType(TensorProto.DataType.FLOAT_VALUE);
        for (long length : shape.getShape()) {
            proto.addDims(length);
        }
        if (channel == null) {
            if (tensor.bytes() > Integer.MAX_VALUE) {
                throw new IllegalArgumentException(
                        ("%s %s has %d bytes, and a message of ONNX holds 2,147,483,647: let it go to"
                                        + " a file of its own by a smaller optExternalAbove")
                                .formatted(name, shape, tensor.bytes()));
            }
            try (ByteString.Output bytes = ByteString.newOutput((int) tensor.bytes())) {
                tensor.write(chunk -> bytes.write(copy(chunk)));
                return proto.setRawData(bytes.toByteString()).build();
            }
        }
        channel.position((channel.position() + PAGE - 1) / PAGE * PAGE);
        proto.setDataLocation(TensorProto.DataLocation.EXTERNAL)
                .addExternalData(entry("location", file.getFileName().toString()))
                .addExternalData(entry("offset", Long.toString(channel.position())))
                .addExternalData(entry("length", Long.toString(tensor.bytes())));
        tensor.write(this::drain);
        return proto.build();
    }

    private void drain(ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            channel.write(bytes);
        }
    }

    private static byte[] copy(ByteBuffer chunk) {
        byte[] bytes = new byte[chunk.remaining()];
        chunk.get(bytes);
        return bytes;
    }

    private static StringStringEntryProto entry(String key, String value) {
        return StringStringEntryProto.newBuilder().setKey(key).setValue(value).build();
    }

    /** Brings the weights to the disk. */
    void finish() throws IOException {
        if (channel != null) {
            channel.force(true);
            channel.close();
        }
    }

    @Override
    public void close() throws IOException {
        if (channel != null) {
            channel.close();
        }
    }
}
