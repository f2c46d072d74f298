package io.djltp.job;

import com.google.gson.Gson;
import com.google.gson.JsonParseException;

import java.io.IOException;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * A message of a control connection: after 4 bytes for its length, 1 byte for the type, then what
 * it says as JSON, and parts that are bytes, each after 4 bytes for its length.
 *
 * @param type what it is
 * @param content what it says, of the class of its type
 * @param parts what the ranks exchange
 */
record Message(Type type, Object content, byte[]... parts) {

    private static final Gson GSON = new Gson();

    /** What a message is, and what it says. */
    enum Type {
        /** To the master: this is who comes. */
        HELLO(Hello.class),
        /** From the master: all have come, and these are they. */
        WELCOME(Welcome.class),
        /** From the master: the job does not come together, and why. */
        REFUSE(String.class),
        /** I live, and this is what my ranks are doing. */
        HEARTBEAT(String.class),
        /** To the master: my part of an exchange. */
        EXCHANGE(Turn.class),
        /** From the master: the parts of all. */
        RESULT(String.class),
        /** To the master: the job has failed, as far as I know; from it: this is why it failed. */
        FAIL(Failure.class),
        /** I end, and nothing is wrong. Nothing comes after it. */
        GOODBYE(String.class);

        private final Class<?> content;

        Type(Class<?> content) {
            this.content = content;
        }
    }

    /** Which exchange a part is for: how many there were before it, and its name. */
    record Turn(long round, String what) {}

    /**
     * What the master says when all have come.
     *
     * @param timeoutMillis how long all wait for each other
     * @param heartbeatMillis after how long a silent process counts as dead
     * @param encryptData whether data between processes is encrypted
     * @param members all processes, in their order
     */
    record Welcome(
            long timeoutMillis,
            long heartbeatMillis,
            boolean encryptData,
            List<JobMember> members) {}

    /** Who failed, and how. */
    record Failure(int process, int rank, String text) {}

    static Welcome welcome(JobOptions options, boolean encryptData, List<JobMember> members) {
        return new Welcome(
                options.timeout.toMillis(),
                options.heartbeatTimeout.toMillis(),
                encryptData,
                members);
    }

    static Message fail(JobFailedException e) {
        return new Message(Type.FAIL, new Failure(e.getProcess(), e.getRank(), e.getMessage()));
    }

    JobFailedException failure() {
        Failure said = content(Failure.class);
        return new JobFailedException(said.text, said.process, said.rank, null);
    }

    <T> T content(Class<T> as) {
        return as.cast(content);
    }

    /** Returns the message as it is sent. */
    byte[] encode() {
        byte[] json = GSON.toJson(content).getBytes(StandardCharsets.UTF_8);
        int length = 1 + Integer.BYTES + json.length;
        for (byte[] part : parts) {
            length += Integer.BYTES + part.length;
        }
        ByteBuffer bytes = ByteBuffer.allocate(Integer.BYTES + length).putInt(length);
        bytes.put((byte) type.ordinal()).putInt(json.length).put(json);
        for (byte[] part : parts) {
            bytes.putInt(part.length).put(part);
        }
        return bytes.array();
    }

    /** Reads what comes after the length. */
    static Message decode(byte[] body) throws IOException {
        try {
            ByteBuffer bytes = ByteBuffer.wrap(body);
            Type type = Type.values()[bytes.get()];
            String json = new String(take(bytes), StandardCharsets.UTF_8);
            Object content = GSON.fromJson(json, type.content);
            List<byte[]> parts = new ArrayList<>();
            while (bytes.hasRemaining()) {
                parts.add(take(bytes));
            }
            if (content == null) {
                throw new IOException("an empty message of the type " + type);
            }
            return new Message(type, content, parts.toArray(new byte[0][]));
        } catch (JsonParseException | BufferUnderflowException | IndexOutOfBoundsException e) {
            throw new IOException("a message that cannot be read", e);
        }
    }

    private static byte[] take(ByteBuffer bytes) {
        // never more than is there: a wrong length must not take memory
        byte[] part = new byte[bytes.slice(bytes.position() + 4, bytes.getInt()).remaining()];
        bytes.get(part);
        return part;
    }
}
