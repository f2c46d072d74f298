package io.djltp.job;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelDuplexHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelPromise;

import org.bouncycastle.tls.TlsClientProtocol;
import org.bouncycastle.tls.TlsProtocol;
import org.bouncycastle.tls.TlsServerProtocol;

import java.io.EOFException;
import java.io.IOException;
import java.util.concurrent.CompletableFuture;

/** Puts the bytes of a connection through TLS: sealed below this handler, in clear above it. */
final class TlsHandler extends ChannelDuplexHandler {

    private final CompletableFuture<Void> complete = new CompletableFuture<>();
    private final TlsProtocol protocol;
    private final Opening opening;
    private boolean otherKey;

    private TlsHandler(TlsProtocol protocol, Opening opening) {
        this.protocol = protocol;
        this.opening = opening;
    }

    /** How one side begins. */
    private interface Opening {
        void run() throws IOException;
    }

    static TlsHandler ofClient(JobTls tls) {
        TlsClientProtocol protocol = new TlsClientProtocol();
        return new TlsHandler(protocol, () -> protocol.connect(tls.new Client()));
    }

    static TlsHandler ofServer(JobTls tls) {
        TlsServerProtocol protocol = new TlsServerProtocol();
        return new TlsHandler(protocol, () -> protocol.accept(tls.new Server()));
    }

    /** Returns what completes with the handshake. */
    CompletableFuture<Void> complete() {
        return complete;
    }

    /** Returns whether it is known that the other side has another key. */
    boolean hasOtherKey() {
        return otherKey;
    }

    /** {@inheritDoc} */
    @Override
    public void channelActive(ChannelHandlerContext context) throws IOException {
        opening.run();
        writeSealed(context, context.newPromise());
        context.flush();
        context.fireChannelActive();
    }

    /** {@inheritDoc} */
    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        ByteBuf sealed = (ByteBuf) message;
        byte[] bytes = ByteBufUtil.getBytes(sealed);
        sealed.release();
        try {
            protocol.offerInput(bytes);
        } catch (IOException | RuntimeException e) {
            otherKey |= JobTls.isOfAnotherKey(e);
            complete.completeExceptionally(e);
        }
        writeSealed(context, context.newPromise());
        context.flush();
        if (protocol.isConnected()) {
            complete.complete(null);
        }
        int count = protocol.getAvailableInputBytes();
        if (count > 0) {
            byte[] clear = new byte[count];
            protocol.readInput(clear, 0, count);
            context.fireChannelRead(Unpooled.wrappedBuffer(clear));
        }
        if (protocol.isClosed()) {
            context.close();
        }
    }

    /** {@inheritDoc} */
    @Override
    public void channelInactive(ChannelHandlerContext context) {
        complete.completeExceptionally(new EOFException("the connection was closed"));
        context.fireChannelInactive();
    }

    /** {@inheritDoc} */
    @Override
    public void write(ChannelHandlerContext context, Object message, ChannelPromise promise)
            throws IOException {
        ByteBuf clear = (ByteBuf) message;
        byte[] bytes = ByteBufUtil.getBytes(clear);
        clear.release();
        protocol.writeApplicationData(bytes, 0, bytes.length);
        writeSealed(context, promise);
    }

    private void writeSealed(ChannelHandlerContext context, ChannelPromise promise) {
        byte[] sealed = new byte[protocol.getAvailableOutputBytes()];
        protocol.readOutput(sealed, 0, sealed.length);
        context.write(Unpooled.wrappedBuffer(sealed), promise);
    }
}
