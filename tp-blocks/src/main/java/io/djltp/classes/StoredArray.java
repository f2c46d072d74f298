package io.djltp.classes;

import ai.djl.ndarray.types.DataType;

import io.djltp.classes.RowFile.BadRow;
import io.djltp.internal.Errors;
import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.internal.safetensors.StoredTensor;

import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * An array in a file, of a row after another.
 *
 * @param path the file
 * @param type the type of its elements, little-endian
 * @param rows the number of rows
 * @param width the elements of a row
 * @param begin where the first row begins
 */
record StoredArray(Path path, DataType type, long rows, int width, long begin) {

    private static final Map<String, DataType> NUMPY =
            Map.of(
                    "<f2", DataType.FLOAT16,
                    "<f4", DataType.FLOAT32,
                    "<f8", DataType.FLOAT64,
                    "|u1", DataType.UINT8,
                    "|i1", DataType.INT8,
                    "<i2", DataType.INT16,
                    "<i4", DataType.INT32,
                    "<i8", DataType.INT64);
    private static final Pattern HEADER =
            Pattern.compile(
                    "\\s*\\{\\s*'descr':\\s*'(?<type>[^']*)'\\s*,\\s*'fortran_order':\\s*"
                            + "(?<fortran>True|False)\\s*,\\s*'shape':\\s*\\((?<shape>[\\d\\s,]*)"
                            + "\\)\\s*,?\\s*\\}\\s*");

    /** Reads the header of a .npy file. */
    static StoredArray ofNumpy(Path path) throws IOException {
        String header;
        long begin;
        try (InputStream file = Files.newInputStream(path);
                DataInputStream in = new DataInputStream(file)) {
            byte[] magic = in.readNBytes(8);
            Errors.check(
                    new String(magic, StandardCharsets.ISO_8859_1).startsWith("\u0093NUMPY"),
                    "%s is no .npy file",
                    path);
            boolean first = magic[6] == 1; // version
            int length =
                    first
                            ? Short.toUnsignedInt(Short.reverseBytes(in.readShort()))
                            : Integer.reverseBytes(in.readInt());
            begin = magic.length + (first ? Short.BYTES : Integer.BYTES) + (long) length;
            header = new String(in.readNBytes(length & 0xfffff), StandardCharsets.UTF_8);
        }
        Matcher found = HEADER.matcher(header);
        Errors.check(found.matches(), "%s has a header that cannot be read: %s", path, header);
        DataType type =
                Errors.given(
                        NUMPY.get(found.group("type")),
                        path
                                + " has elements of type "
                                + found.group("type")
                                + ", which is none of "
                                + NUMPY.keySet());
        Errors.check(
                found.group("fortran").equals("False"),
                "%s has its columns one after another: write numpy.ascontiguousarray(array)",
                path);
        long[] shape =
                Arrays.stream(found.group("shape").split(","))
                        .map(String::trim)
                        .filter(size -> !size.isEmpty())
                        .mapToLong(Long::parseLong)
                        .toArray();
        StoredArray array = of(path, type, shape, begin);
        long expected = begin + array.rows * array.rowBytes();
        if (Files.size(path) != expected) {
            throw Errors.argument(
                    "%s has %s bytes, and an array of %s would have %s",
                    path, Files.size(path), Arrays.toString(shape), expected);
        }
        return array;
    }

    /** Reads where a tensor of a safetensors file is. */
    static StoredArray ofTensor(Path path, String name) throws IOException {
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            StoredTensor tensor = file.getTensor(name);
            long begin = file.getDataStart() + tensor.begin();
            return of(path, tensor.dataType(), tensor.shape().getShape(), begin);
        }
    }

    private static StoredArray of(Path path, DataType type, long[] shape, long begin) {
        long width = shape.length == 1 ? 1 : shape.length == 2 ? shape[1] : 0;
        if (width <= 0 || width > Integer.MAX_VALUE / 8) {
            throw Errors.argument(
                    "%s has an array of shape %s: expected [rows] or [rows, columns]",
                    path, Arrays.toString(shape));
        }
        return new StoredArray(path, type, shape[0], (int) width, begin);
    }

    private int rowBytes() {
        return width * type.getNumOfBytes();
    }

    /** Returns the rows of the file. */
    RowFile file() throws IOException {
        RowFile.Split split = RowFile.Split.every(rowBytes());
        return new RowFile(path, begin, begin + rows * rowBytes(), 0, split);
    }

    /** Returns what reads rows as vectors. */
    Supplier<RowParser> vectors() {
        Errors.check(type.isFloating(), "%s has vectors of %s, which are no floats", path, type);
        return () ->
                new Elements() {
                    @Override
                    void parse(ByteBuffer bytes, int from, ParsedRow row) {
                        float[] values = row.newValues(width);
                        for (int i = 0; i < width; i++) {
                            values[i] = number(bytes);
                            if (!Float.isFinite(values[i])) {
                                throw new BadRow(
                                        from,
                                        "finite numbers, found %s in column %d of %s"
                                                .formatted(values[i], i, width));
                            }
                        }
                    }
                };
    }

    /** Returns what reads rows as classes, where -1 is none. */
    Supplier<RowParser> labels() {
        Errors.check(
                type.isInteger() || type == DataType.UINT8,
                "%s has labels of %s, which are no integers",
                path,
                type);
        return () ->
                new Elements() {
                    @Override
                    void parse(ByteBuffer bytes, int from, ParsedRow row) {
                        for (int i = 0; i < width; i++) {
                            long label = integer(bytes);
                            if (label < -1) {
                                throw new BadRow(from, "labels from 0 on, found " + label);
                            }
                            if (label >= 0) {
                                byte[] name =
                                        Long.toString(label).getBytes(StandardCharsets.US_ASCII);
                                row.addLabel(name, 0, name.length);
                            }
                        }
                    }
                };
    }

    private float number(ByteBuffer bytes) {
        return switch (type) {
            case FLOAT32 -> bytes.getFloat();
            case FLOAT64 -> (float) bytes.getDouble();
            case BFLOAT16 -> Float.intBitsToFloat(bytes.getShort() << 16);
            default -> half(bytes.getShort());
        };
    }

    private static float half(short bits) {
        int exponent = bits >> 10 & 31;
        int digits = bits & 1023;
        float size =
                exponent == 31
                        ? digits == 0 ? Float.POSITIVE_INFINITY : Float.NaN
                        : exponent == 0
                                ? Math.scalb((float) digits, -24)
                                : Math.scalb((float) (digits | 1024), exponent - 25);
        return bits < 0 ? -size : size;
    }

    private long integer(ByteBuffer bytes) {
        return switch (type.getNumOfBytes()) {
            case 1 -> type == DataType.UINT8 ? bytes.get() & 0xff : bytes.get();
            case 2 -> bytes.getShort();
            case 4 -> bytes.getInt();
            default -> bytes.getLong();
        };
    }

    /** Reads elements. */
    private abstract static class Elements extends RowParser {

        @Override
        boolean isBlank(byte[] bytes, int from, int to) {
            return false;
        }

        @Override
        void parse(byte[] bytes, int from, int to, ParsedRow row) {
            parse(ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).position(from), from, row);
        }

        abstract void parse(ByteBuffer bytes, int from, ParsedRow row);
    }
}
