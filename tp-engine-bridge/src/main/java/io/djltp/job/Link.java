package io.djltp.job;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * A control connection between two members, with a thread that reads and one that writes.
 *
 * <p>Sending only queues, so that nobody ever waits for a peer that does not read. When nothing is
 * queued the writer sends a heartbeat. The connection ends in order when both sides have sent all
 * they had: each shuts down its output, and reads until the other has done so too.
 */
final class Link {

    private static final int CHUNK = 64 * 1024;
    private static final int MAX_STATUS = 4096;
    // marks the end of the queue
    private static final Message END = Message.goodbye();

    private final SocketChannel channel;
    private final int process;
    private final long limit;
    private final Supplier<String> status;
    private final Events events;
    private final LinkedBlockingQueue<Message> queue = new LinkedBlockingQueue<>();
    private final CountDownLatch ended = new CountDownLatch(1);
    private volatile long intervalMillis;
    private volatile long heard = System.nanoTime();
    private volatile String lastStatus = "";

    /** What happens on a link. Called on its reading thread. */
    interface Events {

        /** A message other than a heartbeat has come. */
        void received(Link link, Message message) throws IOException;

        /** No message will come any more; {@code error} is what was wrong with the last. */
        void ended(Link link, String error);
    }

    /**
     * Creates a link.
     *
     * @param channel the connected channel, in blocking mode
     * @param process the number of the process at the other end
     * @param limit the most bytes of a message that comes
     * @param heartbeatTimeout after how long the peer would take this process for dead
     * @param status returns what is told with each heartbeat
     * @param events what to do with what happens
     */
    Link(
            SocketChannel channel,
            int process,
            long limit,
            Duration heartbeatTimeout,
            Supplier<String> status,
            Events events) {
        this.channel = channel;
        this.process = process;
        this.limit = limit;
        this.status = status;
        this.events = events;
        setHeartbeatTimeout(heartbeatTimeout);
    }

    void setHeartbeatTimeout(Duration timeout) {
        intervalMillis = interval(timeout);
    }

    /** Returns after how many milliseconds the next heartbeat follows. */
    static long interval(Duration heartbeatTimeout) {
        return Math.max(1, Math.min(1000, heartbeatTimeout.toMillis() / 4));
    }

    void start() {
        touch();
        Threads.start("read-process-" + process, this::read);
        Threads.start("write-process-" + process, this::write);
    }

    SocketChannel channel() {
        return channel;
    }

    /** Returns the number of the process at the other end. */
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

    String lastStatus() {
        return lastStatus;
    }

    boolean isEnded() {
        return ended.getCount() == 0;
    }

    /** Queues a message. */
    void send(Message message) {
        queue.add(message);
    }

    /** Ends the output after what is queued. */
    void finish() {
        queue.add(END);
    }

    /** Waits until the peer has finished too, and closes the connection in any case. */
    void close(long deadline) {
        boolean interrupted = false;
        while (!isEnded() && System.nanoTime() - deadline < 0) {
            try {
                ended.await(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
            } catch (InterruptedException e) {
                // what is queued is still to be sent: without a goodbye, this looks like a death
                interrupted = true;
            }
        }
        abort();
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Closes the connection now. */
    void abort() {
        Dialer.closeQuietly(channel);
    }

    private void write() {
        try {
            Message message;
            while ((message = next()) != END) {
                if (message.body().length <= CHUNK) {
                    write(message.encode());
                } else {
                    // a large one goes to many peers: it is not copied for each
                    write(message.encodeHeader());
                    write(ByteBuffer.wrap(message.body()));
                }
            }
            channel.shutdownOutput();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (IOException e) {
            // the reading thread finds it too, and tells
            return;
        }
    }

    private void write(ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            // the channel would copy all that is left into direct memory at once
            ByteBuffer chunk = bytes.slice(bytes.position(), chunk(bytes.remaining()));
            bytes.position(bytes.position() + channel.write(chunk));
        }
    }

    private Message next() throws InterruptedException {
        Message message = queue.poll(intervalMillis, TimeUnit.MILLISECONDS);
        if (message == null) {
            String text = Texts.cutBytes(status.get(), MAX_STATUS);
            message = Message.of(Message.Type.HEARTBEAT, text);
        }
        return message;
    }

    private void read() {
        String error = null;
        try {
            ByteBuffer header = ByteBuffer.allocate(Message.HEADER);
            while (readFully(header.clear(), true)) {
                receive(header.flip());
            }
        } catch (ProtocolException e) {
            error = e.getMessage();
        } catch (IOException e) {
            // the same as an end: a process that is killed may reset its connections
            error = null;
        } finally {
            events.ended(this, error);
            if (error != null) {
                abort();
            }
            ended.countDown();
        }
    }

    private void receive(ByteBuffer header) throws IOException {
        int length = header.getInt();
        if (length < 0 || length > limit) {
            throw new ProtocolException("a message of " + length + " bytes");
        }
        ByteBuffer body = ByteBuffer.allocate(length);
        readFully(body, false);
        try {
            Message message = new Message(Message.type(header.get()), body.array());
            if (message.type() == Message.Type.HEARTBEAT) {
                lastStatus = message.text();
            } else {
                events.received(this, message);
            }
        } catch (IOException e) {
            throw new ProtocolException(e.getMessage());
        }
    }

    private boolean readFully(ByteBuffer to, boolean mayEnd) throws IOException {
        while (to.hasRemaining()) {
            ByteBuffer chunk = to.slice(to.position(), chunk(to.remaining()));
            int count = channel.read(chunk);
            if (count < 0) {
                if (mayEnd && to.position() == 0) {
                    return false;
                }
                throw new EOFException();
            }
            to.position(to.position() + count);
            touch();
        }
        return true;
    }

    private static int chunk(int remaining) {
        return Math.min(CHUNK, remaining);
    }

    /** Something came that is no message. */
    private static final class ProtocolException extends IOException {

        private static final long serialVersionUID = 1L;

        ProtocolException(String message) {
            super(message);
        }
    }
}
