package io.djltp.job;

import java.io.DataInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/**
 * A message of a control connection: 4 bytes for the length of the body, 1 for the type, the body.
 *
 * @param type what it is
 * @param body what it holds
 */
record Message(Type type, byte[] body) {

    /** The bytes before the body. */
    static final int HEADER = 5;

    /** What a message is. */
    enum Type {
        /** From the master: all have come, and these are they. */
        WELCOME,
        /** From the master: the job does not come together, and why. */
        REFUSE,
        /** I live, and this is what my ranks are doing. */
        HEARTBEAT,
        /** To the master: my part of an exchange. */
        EXCHANGE,
        /** From the master: the parts of all. */
        RESULT,
        /** To the master: the job has failed, as far as I know; from it: this is why it failed. */
        FAIL,
        /** I end, and nothing is wrong. */
        GOODBYE
    }

    private static final Type[] TYPES = Type.values();

    static Message of(Type type, String text) {
        return new Message(type, text.getBytes(StandardCharsets.UTF_8));
    }

    static Message goodbye() {
        return new Message(Type.GOODBYE, new byte[0]);
    }

    static Message fail(JobFailedException failure) {
        return new Message(
                Type.FAIL,
                Payload.of(
                        out -> {
                            out.writeInt(failure.getProcess());
                            out.writeInt(failure.getRank());
                            Payload.writeText(out, failure.getMessage());
                        }));
    }

    static Type type(byte code) throws IOException {
        if (code < 0 || code >= TYPES.length) {
            throw new IOException("a message of the unknown type " + code);
        }
        return TYPES[code];
    }

    String text() {
        return new String(body, StandardCharsets.UTF_8);
    }

    JobFailedException failure() throws IOException {
        DataInputStream in = Payload.reader(body);
        int process = in.readInt();
        int rank = in.readInt();
        return new JobFailedException(Payload.readText(in), process, rank, null);
    }

    ByteBuffer encodeHeader() {
        return ByteBuffer.allocate(HEADER).putInt(body.length).put((byte) type.ordinal()).flip();
    }

    ByteBuffer encode() {
        return ByteBuffer.allocate(HEADER + body.length).put(encodeHeader()).put(body).flip();
    }
}
