package io.djltp.job;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/** Plays the master without knowing the secret. */
final class FalseMaster implements AutoCloseable {

    private final ServerSocketChannel server;
    private volatile int served;

    FalseMaster(ServerSocketChannel server) {
        this.server = server;
        new Thread(this::run).start();
    }

    int served() {
        return served;
    }

    private void run() {
        try {
            while (true) {
                try (SocketChannel channel = server.accept()) {
                    channel.write(ByteBuffer.wrap(Proof.hello()));
                    channel.write(ByteBuffer.wrap(Proof.nonce()));
                    channel.read(ByteBuffer.allocate(8192));
                    channel.write(ByteBuffer.wrap(new byte[Proof.BYTES]));
                    served++;
                    channel.read(ByteBuffer.allocate(1));
                }
            }
        } catch (IOException e) {
            return; // the test is over
        }
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        server.close();
    }
}
