package io.djltp.job;

import io.djltp.environment.MasterPort;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.List;

/**
 * A member that was so slow, or came among so many strangers, that the door has dropped it before
 * it was let in: it comes again.
 */
public class DroppedMemberTest {

    @Test(timeOut = 120_000)
    public void aMemberThatWasDroppedAtTheDoorComesAgain() throws Exception {
        ServerSocketChannel bound = Jobs.bind();
        Duration patience = Duration.ofSeconds(60); // on a busy machine
        JobOptions options =
                Jobs.options(2).optTimeout(patience).optHeartbeatTimeout(patience).build();
        try (Street street = new Street(MasterPort.getPort(bound), 2)) {
            List<Job> jobs =
                    Jobs.results(
                            List.of(
                                    () ->
                                            Job.join(
                                                    Jobs.environment(0, 2, street.door),
                                                    options,
                                                    bound),
                                    () -> Jobs.join(1, 2, street.port(), options)));
            Assert.assertEquals(street.connections, 3);
            List<Integer> heard =
                    Jobs.inParallel(jobs, job -> job.exchange("numbers", new byte[1]).length);
            Assert.assertEquals(heard, List.of(2, 2));
            Jobs.closeAll(jobs);
        }
    }

    /** Leads to the door, and cuts the first connections when the member has proved itself. */
    private static final class Street implements AutoCloseable {

        private final ServerSocket server;
        private final int door;
        private final int cuts;
        private volatile int connections;

        Street(int door, int cuts) throws IOException {
            this.door = door;
            this.cuts = cuts;
            server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
            start(this::run);
        }

        int port() {
            return server.getLocalPort();
        }

        private void run() throws IOException {
            while (true) {
                Socket member = server.accept();
                Socket master = new Socket(Jobs.LOOPBACK, door);
                boolean cut = ++connections <= cuts;
                start(() -> lead(member, master, cut ? 1 : Integer.MAX_VALUE));
                start(() -> lead(master, member, Integer.MAX_VALUE));
            }
        }

        /** After the first that a member says, it has only the end of the handshake to say. */
        private static void lead(Socket from, Socket to, int times) throws IOException {
            try (from;
                    to) {
                byte[] bytes = new byte[8192];
                for (int i = 0; i <= times; i++) {
                    int count = from.getInputStream().read(bytes);
                    if (count < 0 || i == times) {
                        return;
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

        /** {@inheritDoc} */
        @Override
        public void close() throws IOException {
            server.close();
        }
    }
}
