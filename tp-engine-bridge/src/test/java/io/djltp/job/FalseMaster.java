package io.djltp.job;

import org.bouncycastle.tls.TlsServerProtocol;
import org.testng.Assert;

import java.io.IOException;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.channels.ServerSocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Plays the master without knowing the secret: it says that the member has another one, or plays
 * back what a true master has said to another member, or to itself.
 */
final class FalseMaster implements AutoCloseable {

    // where both hellos name the session, after the heads of record and message
    private static final int SESSION = 44;
    private static final int SESSION_BYTES = 32;

    private final ServerSocketChannel server;
    private final boolean playsBack;
    private volatile int served;

    FalseMaster(ServerSocketChannel server, boolean playsBack) {
        this.server = server;
        this.playsBack = playsBack;
        new Thread(this::run).start();
    }

    int served() {
        return served;
    }

    private void run() {
        try {
            while (true) {
                try (Socket socket = server.accept().socket()) {
                    serve(socket);
                }
            }
        } catch (IOException e) {
            return; // the test is over
        }
    }

    private void serve(Socket socket) throws IOException {
        byte[] secret = "false".getBytes(StandardCharsets.UTF_8);
        JobTls tls = new JobTls(secret, "");
        TlsServerProtocol protocol = new TlsServerProtocol();
        protocol.accept(tls.new Server());
        byte[] said = new byte[8192];
        int count = socket.getInputStream().read(said);
        if (count < 0) {
            return; // it had no time for more
        }
        byte[] hello = playsBack ? TlsBytes.hello(tls) : Arrays.copyOf(said, count);
        try {
            protocol.offerInput(hello);
        } catch (IOException e) {
            // it has raised an alert, which goes to the member
            Assert.assertFalse(playsBack);
        }
        byte[] answer = new byte[protocol.getAvailableOutputBytes()];
        protocol.readOutput(answer, 0, answer.length);
        if (playsBack) {
            // the session that the member has named, so that it reads on
            System.arraycopy(said, SESSION, answer, SESSION, SESSION_BYTES);
        }
        OutputStream out = socket.getOutputStream();
        out.write(answer);
        served++;
        socket.getInputStream().read();
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        server.close();
    }
}
