package io.djltp.job;

import io.djltp.internal.environment.JobSecret;

import org.bouncycastle.tls.TlsClientProtocol;

import java.io.DataInputStream;
import java.io.IOException;
import java.net.Socket;

/** A member that speaks the protocol, and does with it what a real one would not. */
final class FakeMember implements AutoCloseable {

    private final Socket socket;
    private final TlsClientProtocol protocol;

    /** Connects to the master of a job with a secret, and says nothing. */
    FakeMember(int port, byte[] secret) throws IOException {
        socket = new Socket(Jobs.LOOPBACK, port);
        socket.setTcpNoDelay(true);
        protocol = new TlsClientProtocol(socket.getInputStream(), socket.getOutputStream());
        JobTls tls = new JobTls(secret, "");
        protocol.connect(tls.new Client());
    }

    /** Connects to the master of a job that was given no secret, and says who comes. */
    static FakeMember connect(int port, Hello hello) throws Exception {
        FakeMember member = new FakeMember(port, JobSecret.ofUser());
        member.write(new Message(Message.Type.HELLO, hello).encode());
        return member;
    }

    void write(byte[] bytes) throws IOException {
        protocol.getOutputStream().write(bytes);
    }

    /** Returns the next message that is no heartbeat. */
    Message read() throws IOException {
        Message message = next();
        while (message.type() == Message.Type.HEARTBEAT) {
            message = next();
        }
        return message;
    }

    /** Returns the next message. */
    Message next() throws IOException {
        DataInputStream in = new DataInputStream(protocol.getInputStream());
        byte[] body = new byte[in.readInt()];
        in.readFully(body);
        return Message.decode(body);
    }

    boolean isOpen() {
        return !socket.isClosed();
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        socket.close();
    }
}
