package io.djltp.examples;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;

/** A port for a job. Programs that run without the test framework need one too. */
public final class FreePort {

    private FreePort() {}

    /**
     * Returns a port at which nothing listens now.
     *
     * @return the port
     * @throws IOException if there is none
     */
    public static int find() throws IOException {
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return socket.getLocalPort();
        }
    }
}
