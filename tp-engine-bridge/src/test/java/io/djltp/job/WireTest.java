package io.djltp.job;

import io.djltp.environment.MasterPort;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.channels.ServerSocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;

/** What a job says is not to be read on the wire. */
public class WireTest {

    // types of TLS records (RFC 8446, 5.1)
    private static final int CHANGE_CIPHER_SPEC = 20; // one byte, for old firewalls
    private static final int HANDSHAKE = 22;
    private static final int SEALED = 23;
    private static final int HEADER = 5;

    // of each connection what one side said
    private final List<ByteArrayOutputStream> recorded = new ArrayList<>();

    @BeforeMethod
    public void forget() {
        recorded.clear();
    }

    /** JobBootstrap, heartbeats with what the ranks do, exchanges, and a failure of either side. */
    @Test(timeOut = 60_000, dataProvider = "processes")
    public void nothingIsInClear(int failing) throws Exception {
        ServerSocketChannel bound = Jobs.bind();
        int master = MasterPort.getPort(bound);
        try (ServerSocket proxy = new ServerSocket(0, 50, InetAddress.getByName(Jobs.LOOPBACK))) {
            start(() -> forward(proxy, master));
            JobOptions options = Jobs.options(4).build();
            List<Callable<Job>> tasks = new ArrayList<>();
            tasks.add(() -> Job.join(Jobs.environment(0, 2, master), options, bound));
            tasks.add(() -> Jobs.join(1, 2, proxy.getLocalPort(), options));
            List<Job> jobs = Jobs.results(tasks);
            Jobs.inParallel(
                    jobs,
                    job -> {
                        job.setStatus(() -> "all-reduce-of-status");
                        byte[] part = "part-of-exchange".getBytes(StandardCharsets.UTF_8);
                        job.exchange("name-of-exchange", part);
                        // some heartbeats with the status
                        Assert.assertNull(job.awaitFailure(Duration.ofMillis(2500)));
                        job.exchange("all-have-waited", part); // before one of them fails
                        if (job.getProcess() == failing) {
                            job.fail(2 * failing, new IllegalStateException("text-of-error"));
                        }
                        return job.awaitFailure(Duration.ofSeconds(10)).getMessage();
                    });
            Jobs.closeAll(jobs);
            checkWords(1500, jobs.get(1).getMember(1));
        }
    }

    @DataProvider
    public Object[][] processes() {
        return new Object[][] {{0}, {1}};
    }

    /** Why a process is refused, and who it is, is said in secret too. */
    @Test(timeOut = 60_000)
    public void noRefusalIsInClear() throws Exception {
        ServerSocketChannel bound = Jobs.bind();
        int master = MasterPort.getPort(bound);
        try (ServerSocket proxy = new ServerSocket(0, 50, InetAddress.getByName(Jobs.LOOPBACK))) {
            start(() -> forward(proxy, master));
            JobOptions newer = Jobs.options(4).optVersion("version-of-2").build();
            List<Callable<String>> tasks =
                    List.of(
                            () -> refusal(() -> join(master, bound)),
                            () -> refusal(() -> Jobs.join(1, 2, proxy.getLocalPort(), newer)));
            for (String told : Jobs.results(tasks)) {
                Assert.assertTrue(told.contains("version-of-2"), told);
            }
            checkWords(800, null);
        }
    }

    private static Job join(int port, ServerSocketChannel bound) {
        return Job.join(Jobs.environment(0, 2, port), Jobs.options(4).build(), bound);
    }

    private static String refusal(Callable<Job> joining) {
        return Assert.expectThrows(JobFailedException.class, joining::call).getMessage();
    }

    /**
     * Looks for words, and for records of TLS that are not sealed: the first of each side alone.
     */
    private void checkWords(int least, JobMember member) {
        List<String> words = new ArrayList<>();
        words.addAll(List.of("rank", "process", "part-of", "name-of", "all-reduce", "text-of"));
        words.addAll(List.of("Exception", "version", Jobs.LOOPBACK));
        if (member != null) {
            words.addAll(List.of("" + member.pid(), member.host() + "\""));
        }
        int bytes = 0;
        boolean hello = false;
        synchronized (recorded) {
            for (ByteArrayOutputStream side : recorded) {
                String wire = side.toString(StandardCharsets.ISO_8859_1);
                words.forEach(word -> Assert.assertFalse(wire.contains(word), word));
                hello |= wire.contains("djltp job"); // the name of the key, which is in clear
                checkRecords(side.toByteArray());
                bytes += side.size();
            }
        }
        Assert.assertTrue(hello, "the connections were recorded");
        Assert.assertTrue(bytes > least, "" + bytes);
    }

    private static void checkRecords(byte[] wire) {
        int at = 0;
        for (int number = 0; at < wire.length; number++) {
            boolean sealed = wire[at] == SEALED || wire[at] == CHANGE_CIPHER_SPEC;
            Assert.assertTrue(
                    number == 0 ? wire[at] == HANDSHAKE : sealed, number + ": " + wire[at]);
            at += HEADER + ((wire[at + 3] & 0xff) << 8 | wire[at + 4] & 0xff);
        }
        Assert.assertEquals(at, wire.length);
    }

    private void forward(ServerSocket proxy, int port) throws IOException {
        while (true) {
            Socket member = proxy.accept();
            Socket master = new Socket(Jobs.LOOPBACK, port);
            start(() -> copy(member, master));
            start(() -> copy(master, member));
        }
    }

    private void copy(Socket from, Socket to) throws IOException {
        InputStream in = from.getInputStream();
        OutputStream out = to.getOutputStream();
        byte[] bytes = new byte[8192];
        ByteArrayOutputStream side = new ByteArrayOutputStream();
        synchronized (recorded) {
            recorded.add(side);
        }
        for (int count = in.read(bytes); count >= 0; count = in.read(bytes)) {
            synchronized (recorded) {
                side.write(bytes, 0, count);
            }
            out.write(bytes, 0, count);
        }
        to.shutdownOutput();
    }

    private interface Task {
        void run() throws IOException;
    }

    private static void start(Task task) {
        Runnable quiet =
                () -> {
                    try {
                        task.run();
                    } catch (IOException e) {
                        return; // the test is over
                    }
                };
        Thread thread = new Thread(quiet);
        thread.setDaemon(true);
        thread.start();
    }
}
