package io.djltp.job;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.socket.SocketChannel;
import io.netty.handler.stream.ChunkedStream;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.concurrent.TimeUnit;

/**
 * A control connection between two members. Sending only queues, so that nobody ever waits for a
 * peer that does not read.
 *
 * <p>It ends in order when one side says goodbye, which is the last that it says: the other sends
 * what it still has, and closes.
 */
final class Link extends ChannelInboundHandlerAdapter {

    private static final int CHUNK = 16 * 1024;

    private final SocketChannel channel;
    private final long limit;
    private final ByteBuffer header = ByteBuffer.allocate(Integer.BYTES);
    private ByteBuffer body;
    private Events events;
    private int process = -1;
    private String error;
    private boolean closing;
    private volatile long heard = System.nanoTime();
    private volatile String lastStatus = "";
    private volatile boolean spoken;
    private volatile boolean finished;

    /** What happens on a link. Called on the thread of the job's connections. */
    interface Events {

        /** A message other than a heartbeat has come. */
        void received(Link link, Message message) throws IOException;

        /** No message will come any more; {@code error} is what was wrong with the last. */
        void ended(Link link, String error);
    }

    /**
     * Creates a link.
     *
     * @param channel the connection
     * @param limit the most bytes of a message that comes
     * @param events what to do with what happens
     */
    Link(SocketChannel channel, long limit, Events events) {
        this.channel = channel;
        this.limit = limit;
        this.events = events;
    }

    /** Lets what happens from now on go to another, as soon as who is at the other end is known. */
    void is(int number, Events next) {
        process = number;
        events = next;
    }

    SocketChannel channel() {
        return channel;
    }

    /** Returns the number of the process at the other end, or -1 before it has said it. */
    int process() {
        return process;
    }

    /** Returns when something last came. */
    long heard() {
        return heard;
    }

    /** Counts as if something had come now. */
    void touch() {
        heard = System.nanoTime();
    }

    /** Returns whether a message has come. */
    boolean hasSpoken() {
        return spoken;
    }

    String lastStatus() {
        return lastStatus;
    }

    /** Queues a message. */
    void send(Message message) {
        send(message.encode());
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
        send(Message.goodbye());
        finished = true;
    }

    /** Waits until the peer has closed the connection, and closes it in any case. */
    void close(long deadline) {
        channel.closeFuture()
                .awaitUninterruptibly(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
        channel.close();
    }

    /** Closes the connection now. */
    void abort() {
        channel.close();
    }

    /** {@inheritDoc} */
    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        ByteBuf bytes = (ByteBuf) message;
        try {
            touch();
            while (bytes.isReadable() && !closing) {
                read(bytes);
            }
        } catch (IOException | RuntimeException e) {
            error = e.getMessage();
            closing = true;
            context.close();
        } finally {
            bytes.release();
        }
    }

    private void read(ByteBuf bytes) throws IOException {
        fill(body == null ? header : body, bytes);
        if (body == null && !header.hasRemaining()) {
            int length = header.flip().getInt();
            if (length < 1 || length > limit) {
                throw new IOException("a message of " + length + " bytes");
            }
            body = ByteBuffer.allocate(length);
        } else if (body != null && !body.hasRemaining()) {
            byte[] whole = body.array();
            header.clear();
            body = null;
            received(Message.decode(whole));
        }
    }

    private static void fill(ByteBuffer to, ByteBuf from) {
        int count = Math.min(to.remaining(), from.readableBytes());
        from.readBytes(to.slice(to.position(), count));
        to.position(to.position() + count);
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
        events.ended(this, error);
    }

    /** {@inheritDoc} */
    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        // the same as an end: a process that is killed may reset its connections
        context.close();
    }
}
