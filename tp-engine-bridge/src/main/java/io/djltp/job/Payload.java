package io.djltp.job;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;

/** Writes and reads what messages hold. */
final class Payload {

    private Payload() {}

    /** What is written. */
    interface Content {
        void write(DataOutputStream out) throws IOException;
    }

    static byte[] of(Content content) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try {
            content.write(new DataOutputStream(bytes));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return bytes.toByteArray();
    }

    static DataInputStream reader(byte[] payload) {
        return new DataInputStream(new ByteArrayInputStream(payload));
    }

    static void writeBytes(DataOutputStream out, byte[] bytes) throws IOException {
        out.writeInt(bytes.length);
        out.write(bytes);
    }

    static byte[] readBytes(DataInputStream in) throws IOException {
        int length = in.readInt();
        // never more than is there: a wrong length must not take memory
        if (length < 0 || length > in.available()) {
            throw new IOException("a field of " + length + " bytes where fewer are left");
        }
        return in.readNBytes(length);
    }

    static void writeText(DataOutputStream out, String text) throws IOException {
        writeBytes(out, text.getBytes(StandardCharsets.UTF_8));
    }

    static String readText(DataInputStream in) throws IOException {
        return new String(readBytes(in), StandardCharsets.UTF_8);
    }
}
