package io.djltp.job;

import org.bouncycastle.tls.TlsClientProtocol;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** The bytes that a member sends first. */
final class TlsBytes {

    private TlsBytes() {}

    /** Returns a whole first message, of who has the key of that TLS. */
    static byte[] hello(JobTls tls) throws IOException {
        TlsClientProtocol protocol = new TlsClientProtocol();
        protocol.connect(tls.new Client());
        byte[] bytes = new byte[protocol.getAvailableOutputBytes()];
        protocol.readOutput(bytes, 0, bytes.length);
        return bytes;
    }

    /** Returns that of who has another secret. */
    static byte[] strange() throws IOException {
        return hello(new JobTls("another".getBytes(StandardCharsets.UTF_8), ""));
    }

    /** Returns the first bytes of any. */
    static byte[] start(byte[] whole) {
        return Arrays.copyOf(whole, 9);
    }

    static byte[] join(byte[]... parts) {
        ByteBuffer all = ByteBuffer.allocate(Arrays.stream(parts).mapToInt(p -> p.length).sum());
        for (byte[] part : parts) {
            all.put(part);
        }
        return all.array();
    }
}
