package io.djltp.zoo.minilm;

import java.io.IOException;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/**
 * The fields of a message in <a href="https://protobuf.dev/programming-guides/encoding/">protobuf's
 * wire format</a>, of which an ONNX file is one. Reading needs a handful of fields: that saves who
 * loads the encoder the dependency with which {@link io.djltp.exchange.OnnxExport} writes such
 * files, and the weights a copy: what has a length is a view.
 */
final class WireFormat {

    private static final int VARINT = 0;
    private static final int FIXED_64 = 1;
    private static final int BYTES = 2;
    private static final int FIXED_32 = 5;

    private WireFormat() {}

    /** What is done with a field. */
    interface Field {

        /**
         * Takes a field.
         *
         * @param number its number
         * @param value its value, if it is a number
         * @param bytes its bytes, if it is a text, an array or a message; else {@code null}
         * @throws IOException if it is not what it should be
         */
        void take(int number, long value, ByteBuffer bytes) throws IOException;
    }

    /**
     * Reads a message.
     *
     * @param message the message, which is read to its end
     * @param fields what is done with each field
     * @throws IOException if it is no message
     */
    static void read(ByteBuffer message, Field fields) throws IOException {
        try {
            while (message.hasRemaining()) {
                long key = varint(message);
                int number = (int) (key >>> 3);
                switch ((int) key & 7) {
                    case VARINT:
                        fields.take(number, varint(message), null);
                        break;
                    case FIXED_64:
                        fields.take(number, message.getLong(), null);
                        break;
                    case FIXED_32:
                        fields.take(number, message.getInt(), null);
                        break;
                    case BYTES:
                        int length = Math.toIntExact(varint(message));
                        ByteBuffer bytes = message.slice(message.position(), length);
                        message.position(message.position() + length);
                        fields.take(number, 0, bytes);
                        break;
                    default:
                        throw new IOException("wire type " + (key & 7) + " of field " + number);
                }
            }
        } catch (BufferUnderflowException | IndexOutOfBoundsException | ArithmeticException e) {
            throw new IOException("it ends too early", e);
        }
    }

    /** Returns a text. */
    static String text(ByteBuffer bytes) {
        return StandardCharsets.UTF_8.decode(bytes).toString();
    }

    /** Returns a number: 7 bits a byte, the lowest first, until one without the highest bit. */
    static long varint(ByteBuffer message) {
        long value = 0;
        for (int shift = 0; shift < Long.SIZE; shift += 7) {
            byte next = message.get();
            value |= (next & 0x7fL) << shift;
            if (next >= 0) {
                return value;
            }
        }
        throw new ArithmeticException("a number of more than 64 bits");
    }
}
