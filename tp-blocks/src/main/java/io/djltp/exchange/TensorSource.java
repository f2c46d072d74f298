package io.djltp.exchange;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.ShardRange;
import io.djltp.exchange.NameMapping.Match;
import io.djltp.exchange.NameMapping.Rule;
import io.djltp.exchange.NameMapping.StackedRows;
import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.parameters.SlicedInitializer;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/** Reads a parameter, or a rank's shard of it, out of the tensors whose rows it has. */
final class TensorSource implements SlicedInitializer {

    private final WeightFiles files;
    private final List<String> tensors;
    private final StackedRows rows; // of the tensors, and of what is 0 behind them
    private final long firstRow; // of the parameter among them
    private final Rule rule;
    private final boolean transposed; // whether a row of the parameter is a column of the tensor

    /**
     * Creates a source.
     *
     * @param files the files
     * @param tensors the tensors
     * @param rows the rows of each that count, and the number of rows of zeros
     * @param firstRow which of all rows is the parameter's first
     * @param rule the rule of the mapping
     */
    TensorSource(
            WeightFiles files, List<String> tensors, StackedRows rows, long firstRow, Rule rule) {
        this.files = files;
        this.tensors = List.copyOf(tensors);
        this.rows = rows;
        this.firstRow = firstRow;
        this.rule = rule;
        transposed = rule.transposed();
    }

    /** {@inheritDoc} */
    @Override
    public NDArray initialize(NDManager manager, Shape shape, DataType dataType) {
        List<ShardRange> all = List.of(new ShardRange(0, Match.rows(shape)));
        return initialize(manager, shape, dataType, 0, all);
    }

    /** {@inheritDoc} */
    @Override
    public NDArray initialize(
            NDManager manager, Shape shape, DataType dataType, int axis, List<ShardRange> ranges) {
        try {
            return read(manager, shape, dataType, axis, ranges);
        } catch (IOException e) {
            throw new UncheckedIOException(
                    "The tensors " + tensors + " cannot be read from " + files + ": " + e, e);
        }
    }

    private NDArray read(
            NDManager manager, Shape shape, DataType type, int axis, List<ShardRange> ranges)
            throws IOException {
        if (rule.isPlain()) {
            String name = tensors.get(0);
            SafetensorsFile reader = files.fileOf(name);
            NDArray array =
                    shape.dimension() == 0
                            ? reader.read(name, manager)
                            : reader.read(name, axis, ranges, manager);
            return converted(array, type, name);
        }
        List<ShardRange> wanted = axis == 0 ? ranges : List.of(new ShardRange(0, shape.get(0)));
        List<StackedRows.Segment> segments = new ArrayList<>();
        for (ShardRange range : wanted) {
            long from = firstRow + range.start();
            segments.addAll(rows.segments(from, from + range.length()));
        }
        List<ShardRange> columns = axis == 0 ? null : ranges;
        if (segments.size() == 1 && segments.get(0).part() < tensors.size() && !transposed) {
            return read(manager, type, segments.get(0), axis, columns);
        }
        long[] dimensions = shape.getShape().clone();
        dimensions[axis] = ranges.stream().mapToLong(ShardRange::length).sum();
        NDArray whole = manager.zeros(new Shape(dimensions), type);
        long at = 0;
        for (StackedRows.Segment segment : segments) {
            if (segment.part() < tensors.size()) {
                try (NDArray piece = read(manager, type, segment, axis, columns)) {
                    whole.set(new NDIndex().addSliceDim(at, at + segment.length()), piece);
                }
            }
            at += segment.length();
        }
        return whole;
    }

    /** Reads rows of a tensor: all, or ranges of their columns. */
    private NDArray read(
            NDManager manager,
            DataType type,
            StackedRows.Segment segment,
            int axis,
            List<ShardRange> columns)
            throws IOException {
        String name = tensors.get(segment.part());
        SafetensorsFile reader = files.fileOf(name);
        List<ShardRange> part = List.of(new ShardRange(segment.from(), segment.length()));
        boolean all = segment.length() == files.get(name).shape().get(transposed ? 1 : 0);
        NDArray array =
                columns != null
                        ? reader.read(name, transposed ? 1 - axis : axis, columns, manager)
                        : reader.read(name, transposed ? 1 : 0, part, manager);
        if (transposed) {
            array = replace(array, array.transpose());
        }
        if (columns != null && !all) { // some of the rows, and of these some columns: rare
            array = replace(array, array.get(segment.from() + ":" + segment.to()));
        }
        return converted(array, type, name);
    }

    /** Converts what was read: bfloat16 is the upper half of a float32, float64 is rounded. */
    private static NDArray converted(NDArray array, DataType type, String name) throws IOException {
        if (array.getDataType() == type || !array.getDataType().isFloating()) {
            return array; // of what is not trained, integers and booleans stay what they are
        }
        NDArray result = array.toType(type, false);
        if (type.getNumOfBytes() > array.getDataType().getNumOfBytes()) {
            return replace(array, result);
        }
        try (array;
                NDManager scope = array.getManager().newSubManager()) {
            scope.tempAttachAll(array, result);
            NDArray lost = result.isInfinite().logicalAnd(array.isInfinite().logicalNot());
            if (lost.any().getBoolean()) {
                throw new IOException(
                        String.format(
                                "tensor %s has numbers that %s cannot hold: %s",
                                name,
                                type.name().toLowerCase(Locale.ROOT),
                                array.booleanMask(lost).toArray()[0]));
            }
        }
        return result;
    }

    private static NDArray replace(NDArray old, NDArray array) {
        old.close();
        return array;
    }
}
