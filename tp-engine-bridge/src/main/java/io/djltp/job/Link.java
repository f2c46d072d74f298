package io.djltp.job;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.socket.SocketChannel;
import io.netty.handler.codec.ByteToMessageDecoder;
import io.netty.handler.codec.DecoderException;
import io.netty.handler.stream.ChunkedStream;
import io.netty.handler.stream.ChunkedWriteHandler;

import org.jspecify.annotations.Nullable;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A control connection between two members. Sending only queues, so that nobody ever waits for a
 * peer that does not read.
 *
 * <p>It ends in order when one side says goodbye, which is the last that it says: the other sends
 * what it still has, and closes.
 */
final class Link extends ByteToMessageDecoder {

    /** How long the end of a connection may take. */
    private static final long END_NANOS = TimeUnit.SECONDS.toNanos(2);

    private static final int CHUNK = 16 * 1024;

    final SocketChannel channel;

    /** Who is at the other end, or {@code null} before that is known. */
    @Nullable Hello hello;

    private final long limit;
    private final Events events;
    private @Nullable String error;
    private boolean closing;
    private volatile long heard = System.nanoTime();
    private volatile String lastStatus = "";
    private volatile boolean spoken;
    private volatile boolean finished;

    /** What happens on a link. Called on the thread of the job's connections. */
    interface Events {

        /** A message other than a heartbeat has come. */
        void received(Link link, Message message) throws IOException;

        /** No message will come any more. */
        void ended(Link link);
    }

    /**
     * Creates a link.
     *
     * @param channel the connection
     * @param tls its encryption
     * @param limit the most bytes of a message that comes
     * @param events what to do with what happens
     */
    Link(SocketChannel channel, JobTls.Handler tls, long limit, Events events) {
        this.channel = channel;
        this.limit = limit;
        this.events = events;
        setCumulator(COMPOSITE_CUMULATOR); // of a large message, nothing is copied twice
        // parts of large messages go to TLS one by one, as fast as the peer takes them
        channel.pipeline().addLast(tls, new ChunkedWriteHandler(), this);
    }

    /** Returns whether nothing had come for so long at a time. */
    boolean isSilent(long now, long nanos) {
        return channel.isActive() && now - heard > nanos;
    }

    /** Returns for how long nothing has come. */
    Duration silence() {
        return Duration.ofNanos(System.nanoTime() - heard);
    }

    /** Counts as if something had come now. */
    void touch() {
        heard = System.nanoTime();
    }

    /** Returns whether nothing has come, neither right nor wrong. */
    boolean isUnheard() {
        return !spoken && error == null;
    }

    String lastStatus() {
        return lastStatus;
    }

    /** Says in words how it ended. */
    String describeEnd() {
        return error == null ? " ended without a word" : " sent what it must not: " + error;
    }

    /** Says in words that nothing has come for so long. */
    String describeSilence(Duration silence) {
        String last = lastStatus.isEmpty() ? "" : "; when last heard it was in: " + lastStatus;
        return " has not been heard for " + ErrorTexts.time(silence) + last;
    }

    /** Queues a message. */
    void send(Message.Type type, Object content, byte[]... parts) {
        send(new Message(type, content, parts).encode());
    }

    /** Queues a message that goes to many peers: a large one is not copied for each. */
    void send(byte[] message) {
        if (finished) {
            return;
        }
        channel.writeAndFlush(
                message.length <= CHUNK
                        ? Unpooled.wrappedBuffer(message)
                        : new ChunkedStream(new ByteArrayInputStream(message), CHUNK));
    }

    /** Queues a heartbeat, unless so much is queued that the peer hears enough. */
    void sendHeartbeat(byte[] message) {
        if (channel.isWritable()) {
            send(message);
        }
    }

    /** Says goodbye: the peer closes the connection when it has read all. */
    void finish() {
        send(Message.Type.GOODBYE, "");
        finished = true;
    }

    /** Says goodbye to all, waits until they have closed the connections, and closes the rest. */
    static void finish(Collection<Link> links) {
        links.forEach(Link::finish);
        long deadline = System.nanoTime() + END_NANOS;
        for (Link link : links) {
            long left = deadline - System.nanoTime();
            link.channel.closeFuture().awaitUninterruptibly(left, TimeUnit.NANOSECONDS);
            link.channel.close();
        }
    }

    /** {@inheritDoc} */
    @Override
    protected void decode(ChannelHandlerContext context, ByteBuf in, List<Object> out)
            throws IOException {
        touch();
        if (closing) {
            in.skipBytes(in.readableBytes());
        } else if (in.readableBytes() >= Integer.BYTES) {
            int length = in.getInt(in.readerIndex());
            if (length < 1 || length > limit) {
                throw new IOException("a message of " + length + " bytes");
            }
            if (in.readableBytes() >= Integer.BYTES + length) {
                in.skipBytes(Integer.BYTES);
                received(Message.decode(ByteBufUtil.getBytes(in.readSlice(length))));
            }
        }
    }

    private void received(Message message) throws IOException {
        spoken = true;
        if (message.type() == Message.Type.HEARTBEAT) {
            lastStatus = message.content(String.class);
            return;
        }
        events.received(this, message);
        if (message.type() == Message.Type.GOODBYE) {
            closing = true;
            finished = true;
            channel.writeAndFlush(Unpooled.EMPTY_BUFFER).addListener(ChannelFutureListener.CLOSE);
        }
    }

    /** {@inheritDoc} */
    @Override
    public void channelInactive(ChannelHandlerContext context) {
        closing = true;
        events.ended(this);
    }

    /** {@inheritDoc} */
    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        // another exception is the same as an end: who is killed may reset its connections
        if (cause instanceof DecoderException wrong) {
            error = (wrong.getCause() == null ? wrong : wrong.getCause()).getMessage();
            closing = true;
        }
        context.close();
    }
}
