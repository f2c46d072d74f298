package io.djltp.internal.sockets;

import io.djltp.job.Job;
import io.djltp.job.JobFailedException;

import org.jspecify.annotations.Nullable;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import java.util.function.IntUnaryOperator;

/**
 * Connects every rank of a job with every other one: each process listens at a port of its own, and
 * of every two ranks the higher one connects to the lower one's, with a token that follows from
 * what that process has said to all over TLS. What goes from process to process is encrypted if the
 * job says so, see {@link Job#isDataEncrypted}.
 */
public final class RankSockets {

    private static final int PAUSE_MILLIS = 20;
    private static final int ATTEMPT_MILLIS = 5000;

    private final Job job;
    private final String name;
    private final IntUnaryOperator portOf;
    private final SocketChannel[][] channels;
    private byte[][] offers = {}; // of all processes: its ticket, and its port

    private RankSockets(Job job, String name, IntUnaryOperator portOf) {
        this.job = job;
        this.name = name;
        this.portOf = portOf;
        channels = new SocketChannel[job.getLocalRanks()][job.getRanks()];
    }

    /**
     * Connects every rank with every other one. Called by all processes with the same name.
     *
     * @param job the job
     * @param name the name of the mesh
     * @return the connected channels, in blocking mode and without delay: {@code [i][r]} connects
     *     local rank {@code i} with rank {@code r}, and is {@code null} for itself. The caller
     *     closes them
     * @throws JobFailedException if a connection cannot be made, or the job fails
     */
    public static RankChannel[][] connect(Job job, String name) {
        return connect(job, name, port -> port);
    }

    /**
     * The same of a process that the others reach by another port.
     *
     * @param portOf returns the port to which they are to connect, of that at which it listens
     */
    static RankChannel[][] connect(Job job, String name, IntUnaryOperator portOf) {
        RankSockets sockets = new RankSockets(job, name, portOf);
        try {
            if (job.getRanks() > 1) {
                sockets.connect();
            }
            return sockets.mesh();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw sockets.failure(" was interrupted in the mesh '" + name + "'", e);
        } catch (IOException e) {
            throw sockets.failure(" cannot listen for the mesh '" + name + "': " + e, e);
        }
    }

    /** The others wait for a part that will not come: the job has failed. */
    private JobFailedException failure(String text, Exception cause) {
        int process = job.getProcess();
        JobFailedException failure =
                new JobFailedException(job.getMember(process) + text, process, -1, cause);
        job.fail(-1, failure);
        return failure;
    }

    private void connect() throws IOException, InterruptedException {
        RankDoor door = new RankDoor(job);
        boolean done = false;
        try (door) {
            byte[] offer =
                    ByteBuffer.allocate(RankDoor.TICKET + Integer.BYTES)
                            .put(door.ticket())
                            .putInt(portOf.applyAsInt(door.port()))
                            .array();
            offers = job.exchange("mesh: " + name, offer);
            // half the time of an exchange: those who succeed wait for the others in the next one
            Duration time = job.getTimeout().dividedBy(2);
            long deadline = System.nanoTime() + time.toNanos();
            String error = dialAll(deadline);
            while (error == null && !door.await(PAUSE_MILLIS)) {
                if (isOver(deadline)) {
                    error = door.describeMissing() + " within " + time.toMillis() + " ms";
                }
            }
            job.check("connecting the mesh '" + name + "'", error);
            done = true;
        } finally {
            door.take().forEach((pair, it) -> channels[pair.to() - first()][pair.from()] = it);
            if (!done) {
                Arrays.stream(channels).flatMap(Arrays::stream).forEach(RankSockets::closeQuietly);
            }
        }
    }

    private RankChannel[][] mesh() {
        RankChannel[][] mesh = new RankChannel[channels.length][job.getRanks()];
        for (int i = 0; i < mesh.length; i++) {
            for (int other = 0; other < mesh[i].length; other++) {
                if (channels[i][other] != null) {
                    mesh[i][other] = channel(channels[i][other], first() + i, other);
                }
            }
        }
        return mesh;
    }

    /** Of two processes each has drawn a part of the secret. */
    private RankChannel channel(SocketChannel socket, int own, int other) {
        int lower = job.processOf(Math.min(own, other));
        int higher = job.processOf(Math.max(own, other));
        if (!job.isDataEncrypted() || lower == higher) {
            return new RankChannel(socket);
        }
        byte[] secret = Arrays.copyOf(offers[lower], 2 * RankDoor.TICKET);
        System.arraycopy(offers[higher], 0, secret, RankDoor.TICKET, RankDoor.TICKET);
        return new RankChannel(socket, secret, own, other);
    }

    private int first() {
        return job.getFirstRank();
    }

    private boolean isOver(long deadline) {
        return deadline - System.nanoTime() <= 0 || !job.isActive();
    }

    /** Connects the ranks of this process to all lower ones; returns what went wrong, if it did. */
    private @Nullable String dialAll(long deadline) throws IOException, InterruptedException {
        for (int from = first(); from < first() + channels.length; from++) {
            for (int to = 0; to < from; to++) {
                int process = job.processOf(to);
                byte[] ticket = Arrays.copyOf(offers[process], RankDoor.TICKET);
                int port = ByteBuffer.wrap(offers[process]).getInt(RankDoor.TICKET);
                InetAddress host = InetAddress.getByName(job.getMember(process).address());
                if (host.isAnyLocalAddress()) {
                    host = InetAddress.getLoopbackAddress(); // it is this process
                }
                InetSocketAddress address = new InetSocketAddress(host, port);
                byte[] token = new RankDoor.Pair(from, to).token(ticket);
                try {
                    channels[from - first()][to] = dial(address, token, deadline);
                } catch (IOException e) {
                    return ("rank %d cannot reach rank %d at %s: %s; let the machines connect to"
                                    + " each other at any port")
                            .formatted(from, to, address, e.getMessage());
                }
            }
        }
        return null;
    }

    /** Tries again, as a flood of strangers may have pushed a connection out. */
    private SocketChannel dial(InetSocketAddress address, byte[] token, long deadline)
            throws IOException, InterruptedException {
        while (true) {
            SocketChannel channel = SocketChannel.open();
            try {
                channel.socket().connect(address, Math.min(ATTEMPT_MILLIS, millisTo(deadline)));
                channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                show(channel, token, deadline);
                return channel;
            } catch (IOException e) {
                closeQuietly(channel);
                // an interrupt closes the channel, and would look like a failed attempt
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
                if (isOver(deadline)) {
                    throw e;
                }
            }
            TimeUnit.MILLISECONDS.sleep(PAUSE_MILLIS);
        }
    }

    private static int millisTo(long deadline) {
        long millis = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
        return (int) Math.max(1, Math.min(millis, Integer.MAX_VALUE));
    }

    private void show(SocketChannel channel, byte[] token, long deadline) throws IOException {
        ByteBuffer shown = ByteBuffer.wrap(token, 0, RankDoor.SHOWN);
        while (shown.hasRemaining()) {
            channel.write(shown);
        }
        byte[] answer = readAnswer(channel.socket(), deadline);
        byte[] expected = Arrays.copyOfRange(token, RankDoor.SHOWN, token.length);
        if (!MessageDigest.isEqual(answer, expected)) {
            throw new EOFException("what listens there is not the process of that rank");
        }
    }

    /** Waits in short turns: a frozen process does not answer, and the job fails meanwhile. */
    private byte[] readAnswer(Socket socket, long deadline) throws IOException {
        byte[] answer = new byte[RankDoor.ANSWER];
        InputStream in = socket.getInputStream();
        socket.setSoTimeout(PAUSE_MILLIS);
        int read = 0;
        while (read < answer.length) {
            try {
                int more = in.read(answer, read, answer.length - read);
                if (more < 0) {
                    throw new EOFException("the connection was closed");
                }
                read += more;
            } catch (SocketTimeoutException e) {
                if (isOver(deadline)) {
                    throw e;
                }
            }
        }
        socket.setSoTimeout(0);
        return answer;
    }

    static void closeQuietly(SocketChannel channel) {
        try {
            if (channel != null) {
                channel.close();
            }
        } catch (IOException e) {
            // nothing is lost with it
            return;
        }
    }
}
