package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;
import io.djltp.testing.FreePort;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/**
 * Runs that a launcher has named meet although the port that it gave is taken: by torchrun's own
 * agent, another job, or a process of an earlier attempt that has not ended.
 */
public class RunsTest {

    private static final InetAddress LOOPBACK = InetAddress.getLoopbackAddress();

    /** What torchrun sets on one machine. */
    private static LaunchEnvironment torchrun(
            int process, int processes, int port, String run, int attempt, boolean agentListens) {
        Map<String, String> variables =
                Map.of(
                        "RANK", "" + process,
                        "WORLD_SIZE", "" + processes,
                        "LOCAL_RANK", "" + process,
                        "LOCAL_WORLD_SIZE", "" + processes,
                        "GROUP_WORLD_SIZE", "1",
                        "MASTER_ADDR", "localhost",
                        "MASTER_PORT", "" + port,
                        "TORCHELASTIC_RUN_ID", run,
                        "TORCHELASTIC_RESTART_COUNT", "" + attempt,
                        "TORCHELASTIC_USE_AGENT_STORE", agentListens ? "True" : "False");
        return LaunchEnvironment.detect(variables).orElseThrow();
    }

    /** Joins all processes of a run. */
    private static List<Job> joinAll(
            int processes, int port, String run, int attempt, boolean agentListens)
            throws Exception {
        List<Callable<Job>> tasks = new ArrayList<>();
        for (int i = 0; i < processes; i++) {
            tasks.add(joins(torchrun(i, processes, port, run, attempt, agentListens)));
        }
        return Jobs.results(tasks);
    }

    private static Callable<Job> joins(LaunchEnvironment environment) {
        return () -> Job.join(environment, Jobs.options(2 * environment.processes()).build());
    }

    private static void assertTogether(List<Job> jobs) throws Exception {
        List<byte[][]> all =
                Jobs.inParallel(
                        jobs, job -> job.exchange("who", new byte[] {(byte) job.getProcess()}));
        for (byte[][] each : all) {
            Assert.assertEquals(each.length, jobs.size());
        }
        Jobs.closeAll(jobs);
    }

    /** The agent says nothing of its own accord, as the store of PyTorch does not. */
    @Test(timeOut = 30_000)
    public void theAgentListensAtThePortItself() throws Exception {
        try (ServerSocket agent = new ServerSocket(0, 50, LOOPBACK)) {
            long start = System.nanoTime();
            assertTogether(joinAll(3, agent.getLocalPort(), "none", 0, true));
            Assert.assertTrue(System.nanoTime() - start < 3e9, "nobody waits for the agent");
        }
    }

    /** All of them are called "none", which is what torchrun calls a run that has no name. */
    @Test(timeOut = 60_000)
    public void manyJobsOfOneMachineMeetAtOnce() throws Exception {
        List<ServerSocket> agents = new ArrayList<>();
        List<Callable<Job>> tasks = new ArrayList<>();
        for (int job = 0; job < 6; job++) {
            ServerSocket agent = new ServerSocket(0, 50, LOOPBACK);
            agents.add(agent);
            for (int i = 0; i < 2; i++) {
                tasks.add(joins(torchrun(i, 2, agent.getLocalPort(), "none", 0, true)));
            }
        }
        List<Job> jobs = Jobs.results(tasks);
        for (int job = 0; job < 6; job++) {
            assertTogether(jobs.subList(2 * job, 2 * job + 2));
            agents.get(job).close();
        }
    }

    @DataProvider
    static Object[][] agents() {
        return new Object[][] {{true}, {false}};
    }

    /** The first port is taken: by one that listens and says nothing or by another job of ours. */
    @Test(dataProvider = "agents", timeOut = 60_000)
    public void aTakenPortIsLeftAlone(boolean otherJob) throws Exception {
        int given = FreePort.find();
        LaunchEnvironment master = torchrun(0, 2, given, "r", 0, true);
        int first = master.masterPort();
        try (ServerSocketChannel taken = MasterPort.bind(LOOPBACK, first)) {
            List<Callable<Job>> tasks = new ArrayList<>();
            tasks.add(joins(master));
            tasks.add(joins(torchrun(1, 2, given, "r", 0, true)));
            if (otherJob) {
                // of the same user, and in wait for a process of its own
                LaunchEnvironment other = new LaunchEnvironment("o", 0, 2, 0, "127.0.0.1", first);
                JobOptions options = Jobs.options(2).optTimeout(Duration.ofMillis(2500)).build();
                tasks.add(() -> Job.join(other, options, taken));
            }
            List<Object> outcomes = Jobs.outcomes(tasks);
            List<Job> jobs = new ArrayList<>();
            for (Object outcome : outcomes.subList(0, 2)) {
                Assert.assertTrue(outcome instanceof Job, "" + outcome);
                jobs.add((Job) outcome);
            }
            assertTogether(jobs);
            if (otherJob) {
                Jobs.assertMatches((Throwable) outcomes.get(2), "process 1 of 2 did not come .*");
            }
        }
    }

    /** A process 0 of the attempt before has not ended: the new one does not come to it. */
    @Test(dataProvider = "agents", timeOut = 60_000)
    public void anotherAttemptMeetsElsewhere(boolean agentListens) throws Exception {
        int given = FreePort.find();
        List<Job> orphans = joinAll(2, given, "none", 0, agentListens);
        assertTogether(joinAll(2, given, "none", 1, agentListens));
        assertTogether(orphans);
    }

    @Test(timeOut = 30_000)
    public void allPortsThatWereTriedAreNamed() throws Exception {
        int given = FreePort.find();
        LaunchEnvironment alone = torchrun(1, 2, given, "none", 0, true);
        JobOptions options = Jobs.options(2).optTimeout(Duration.ofSeconds(1)).build();
        Jobs.assertFails(
                "Process 1 cannot reach process 0 at 127.0.0.1:2\\d{4}(, 2\\d{4}){4} within 1 s"
                        + " \\(Connection refused\\): see whether process 0 was started there, .*",
                () -> Job.join(alone, options));
    }
}
