package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;
import io.djltp.testing.FreePort;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.InputStream;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** A process that does not find its master says what is wrong with the address. */
public class MasterAddressTest {

    private static final Duration SHORT = Duration.ofSeconds(1);

    @Test(timeOut = 30_000)
    public void anUnreachableMasterIsNamed() throws Exception {
        int port = FreePort.find();
        JobOptions options = Jobs.options(2).optTimeout(SHORT).build();
        Jobs.assertFails(
                ("Process 1 cannot reach process 0 at 127.0.0.1:%d within 1 s \\(Connection"
                                + " refused\\): see whether process 0 was started there, and"
                                + " MASTER_ADDR and MASTER_PORT are the same on all processes")
                        .formatted(port),
                () -> Jobs.join(1, 2, port, options));
    }

    @Test(timeOut = 30_000)
    public void anotherServiceAtThePortIsNamed() throws Exception {
        try (ServerSocket other = new ServerSocket(0)) {
            Thread http = new Thread(() -> answerHttp(other));
            http.start();
            JobOptions options = Jobs.options(2).optTimeout(SHORT).build();
            Jobs.assertFails(
                    ".*what listens there is no process of a job, or has another.*",
                    () -> Jobs.join(1, 2, other.getLocalPort(), options));
        }
    }

    private static void answerHttp(ServerSocket server) {
        try {
            while (true) {
                try (Socket socket = server.accept()) {
                    socket.getOutputStream().write("HTTP/1.1 400 Bad Request\r\n".getBytes());
                    InputStream in = socket.getInputStream();
                    in.read();
                }
            }
        } catch (java.io.IOException e) {
            return; // the test is over
        }
    }

    @Test(timeOut = 30_000)
    public void aPortInUseIsAnErrorAtOnce() throws Exception {
        try (ServerSocketChannel other = Jobs.bind()) {
            int port = MasterPort.getPort(other);
            long start = System.nanoTime();
            Jobs.assertFails(
                    ("Process 0 cannot listen at 127.0.0.1:%d \\(Address already in use\\): end"
                                    + " what uses port %d, or set MASTER_PORT to a free port on all"
                                    + " processes")
                            .formatted(port, port),
                    () -> Jobs.join(0, 2, port, Jobs.options(2).build()));
            Assert.assertTrue(System.nanoTime() - start < 5e9);
        }
    }

    /** The cause comes first: a name that is not known, and then what else is missing. */
    @Test(timeOut = 60_000)
    public void aNameThatDoesNotResolveIsNamed() throws Exception {
        for (int process = 0; process < 2; process++) {
            LaunchEnvironment slurm = slurm(process);
            Jobs.assertThrows(
                    IllegalArgumentException.class,
                    "Process 0 is to be at n1.invalid:20007, and the name 'n1.invalid' does not"
                            + " resolve on this machine: set MASTER_ADDR to an address of the"
                            + " machine of process 0 \\(the NodeAddr of scontrol show node"
                            + " n1.invalid\\), or add the name to /etc/hosts. A job that other"
                            + " machines can reach needs a secret, too: set TP_SECRET to .*",
                    () -> Job.join(slurm, Jobs.options(2).build()));
        }
        JobOptions options =
                Jobs.options(2)
                        .optSecret(new byte[] {1, 2, 3})
                        .optTimeout(Duration.ofMinutes(5))
                        .build();
        Jobs.assertFails(
                "Process 1 cannot reach process 0 at n1.invalid:20007.* within 11 s \\(unknown host"
                        + " n1.invalid\\): the name 'n1.invalid' does not resolve on this machine:"
                        + " set MASTER_ADDR to .*",
                () -> Job.join(slurm(1), options));
    }

    private static LaunchEnvironment slurm(int process) {
        Map<String, String> variables =
                Stream.of(
                                "SLURM_PROCID=" + process,
                                "SLURM_NTASKS=2",
                                "SLURM_JOB_ID=7",
                                "SLURM_STEP_ID=0",
                                "SLURM_STEP_NUM_NODES=2",
                                "SLURM_STEP_NODELIST=n1.invalid,n2.invalid")
                        .map(each -> each.split("="))
                        .collect(Collectors.toMap(each -> each[0], each -> each[1]));
        return LaunchEnvironment.detect(variables).orElseThrow();
    }

    /** The name of a service is an address, but none of the machine that process 0 runs on. */
    @Test(timeOut = 30_000)
    public void anAddressOfNoMachineMeansAllAddresses() throws Exception {
        int port = FreePort.find();
        JobOptions options = Jobs.options(2).optSecret(new byte[16]).build();
        LaunchEnvironment service = new LaunchEnvironment("test", 0, 2, 0, "198.51.100.77", port);
        List<Callable<Job>> tasks =
                List.of(() -> Job.join(service, options), () -> Jobs.join(1, 2, port, options));
        Jobs.closeAll(Jobs.results(tasks));
    }
}
