package io.djltp.zoo;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.ShardRange;
import io.djltp.parameters.SlicedInitializer;
import io.djltp.safetensors.SafetensorsFile;
import io.djltp.safetensors.SliceReader;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.List;

/**
 * Reads a parameter from the tensor of its name: the whole at once, or for one rank after another
 * its ranges and nothing else.
 */
final class StoredTensorSource implements SlicedInitializer {

    private final SafetensorsFile file;
    private final String name;
    private final long[] bytes;
    private int rank; // whose turn it is

    /**
     * Creates a source.
     *
     * @param file the file
     * @param name the name of the tensor
     * @param bytes where the bytes that are read for each rank are added; what all ranks have is
     *     read once, for rank 0
     */
    StoredTensorSource(SafetensorsFile file, String name, long[] bytes) {
        this.file = file;
        this.name = name;
        this.bytes = bytes;
    }

    /** What reads an array. */
    private interface Reading {

        NDArray run(SliceReader reader) throws IOException;
    }

    /** {@inheritDoc} */
    @Override
    public NDArray initialize(
            NDManager manager, Shape shape, DataType dataType, int axis, List<ShardRange> ranges) {
        return read(reader -> reader.read(name, axis, ranges, manager), dataType);
    }

    /** {@inheritDoc} */
    @Override
    public NDArray initialize(NDManager manager, Shape shape, DataType dataType) {
        return read(reader -> reader.read(name, manager), dataType);
    }

    private NDArray read(Reading reading, DataType type) {
        long before = file.getBytesRead();
        try {
            NDArray values = reading.run(new SliceReader(file));
            bytes[rank++] += file.getBytesRead() - before;
            return ofType(values, type);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static NDArray ofType(NDArray values, DataType type) {
        if (values.getDataType() == type) {
            return values;
        }
        try (values) {
            return values.toType(type, true);
        }
    }
}
