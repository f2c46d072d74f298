package io.djltp.testing;

import java.io.IOException;
import java.net.BindException;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/** A port for a job. Programs that run without the test framework need one too. */
public final class FreePort {

    /** Below the ports that systems give out, and those that a job derives from its name. */
    private static final int FIRST = 10_000;

    private static final int COUNT = 10_000;
    private static final Random RANDOM = new Random();
    private static final List<DatagramSocket> FOUND = new ArrayList<>();

    private FreePort() {}

    /**
     * Returns a port at which nothing listens, and which no other test finds while this JVM runs.
     *
     * @return the port
     * @throws IOException if there are no sockets
     */
    public static synchronized int find() throws IOException {
        InetAddress here = InetAddress.getLoopbackAddress();
        while (true) {
            int port = FIRST + RANDOM.nextInt(COUNT);
            try (ServerSocket free = new ServerSocket(port, 1, here)) {
                // a socket of UDP leaves the port to servers, and not to those who look for one
                FOUND.add(new DatagramSocket(port, here));
                return free.getLocalPort();
            } catch (BindException e) {
                // somebody has it: another one
            }
        }
    }
}
