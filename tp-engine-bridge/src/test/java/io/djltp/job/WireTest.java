package io.djltp.job;

import io.djltp.environment.MasterPort;

import org.testng.Assert;
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

    private final ByteArrayOutputStream recorded = new ByteArrayOutputStream();

    @Test(timeOut = 60_000)
    public void nothingIsInClear() throws Exception {
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
                        if (job.getProcess() == 1) {
                            job.fail(2, new IllegalStateException("text-of-error"));
                        }
                        return job.awaitFailure(Duration.ofSeconds(10)).getMessage();
                    });
            Jobs.closeAll(jobs);
            JobMember member = jobs.get(1).getMember(1);
            String wire = recorded.toString(StandardCharsets.ISO_8859_1);
            Assert.assertTrue(wire.length() > 1500, "" + wire.length());
            String[] words = {
                "rank",
                "process",
                "part-of",
                "name-of",
                "all-reduce",
                "text-of",
                "Exception",
                "version",
                Jobs.LOOPBACK,
                "" + member.pid(),
                member.host() + "\""
            };
            for (String word : words) {
                Assert.assertFalse(wire.contains(word), word);
            }
        }
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
        for (int count = in.read(bytes); count >= 0; count = in.read(bytes)) {
            synchronized (recorded) {
                recorded.write(bytes, 0, count);
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
