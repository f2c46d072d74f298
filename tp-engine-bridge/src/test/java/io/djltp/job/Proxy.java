package io.djltp.job;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;

/** Stands before a port: records what all say, cuts connections, and changes what comes. */
public final class Proxy implements AutoCloseable {

    private final ServerSocket server;
    private final int master;
    private final int cuts;
    private final long changed; // the byte, -1 for none
    private final List<ByteArrayOutputStream> recorded = new ArrayList<>(); // of each side
    private volatile int connections;

    /**
     * Creates a proxy.
     *
     * @param master the port of the master
     * @param cuts how many connections end with the second message of a member
     */
    Proxy(int master, int cuts) throws IOException {
        this(master, cuts, -1);
    }

    private Proxy(int master, int cuts, long changed) throws IOException {
        this.master = master;
        this.cuts = cuts;
        this.changed = changed;
        server = new ServerSocket(0, 50, InetAddress.getByName(Jobs.LOOPBACK));
        start(this::accept);
    }

    /** Creates a proxy that changes a bit of this byte of what comes over each connection. */
    public static Proxy thatChanges(int port, long at) throws IOException {
        return new Proxy(port, 0, at);
    }

    public int port() {
        return server.getLocalPort();
    }

    int connections() {
        return connections;
    }

    /** Returns what each side of each connection has said. */
    List<byte[]> recorded() {
        synchronized (recorded) {
            return recorded.stream().map(ByteArrayOutputStream::toByteArray).toList();
        }
    }

    private void accept() throws IOException {
        while (true) {
            Socket member = server.accept();
            Socket other = new Socket(Jobs.LOOPBACK, master);
            boolean cut = ++connections <= cuts;
            start(() -> lead(member, other, cut ? 1 : Integer.MAX_VALUE, changed));
            start(() -> lead(other, member, Integer.MAX_VALUE, -1));
        }
    }

    private void lead(Socket from, Socket to, int times, long bad) throws IOException {
        ByteArrayOutputStream side = new ByteArrayOutputStream();
        synchronized (recorded) {
            recorded.add(side);
        }
        try (from;
                to) {
            byte[] bytes = new byte[8192];
            for (int i = 0; i <= times; i++) {
                int count = from.getInputStream().read(bytes);
                if (count < 0 || i == times) {
                    return;
                }
                long at = bad - side.size();
                if (at >= 0 && at < count) {
                    bytes[(int) at] ^= 4;
                }
                synchronized (recorded) {
                    side.write(bytes, 0, count);
                }
                to.getOutputStream().write(bytes, 0, count);
            }
        }
    }

    private interface Task {
        void run() throws IOException;
    }

    private static void start(Task task) {
        Thread thread =
                new Thread(
                        () -> {
                            try {
                                task.run();
                            } catch (IOException e) {
                                return; // the other direction has ended, or the test
                            }
                        });
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void close() throws IOException {
        server.close();
    }
}
