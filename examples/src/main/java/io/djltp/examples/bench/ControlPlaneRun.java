package io.djltp.examples.bench;

import io.djltp.environment.MasterPort;

import java.io.IOException;
import java.nio.channels.ServerSocketChannel;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.TimeUnit;

/**
 * A job of many members in few JVMs: the first JVM has member 0 alone, the last JVM the last member
 * alone, which is the one that dies, and those in between share the others.
 */
final class ControlPlaneRun implements AutoCloseable {

    /** How the last member ends. */
    enum End {
        KILL,
        FREEZE,
        FAIL,
        CLOSE
    }

    private final ControlPlaneRow row = new ControlPlaneRow();
    private final List<MemberJvm> jvms = new ArrayList<>();
    private LoopbackTraffic before = LoopbackTraffic.now();
    private TreeSet<String> lastTexts = new TreeSet<>(); // of the reports that came last

    /**
     * Starts the JVMs.
     *
     * @param members the number of members
     * @param processes the number of JVMs, from 3 to the number of members
     * @param heartbeatMillis after how long a silent member counts as dead
     * @param timeoutMillis how long members wait for each other
     * @throws IOException if a JVM cannot be started
     */
    ControlPlaneRun(int members, int processes, long heartbeatMillis, long timeoutMillis)
            throws IOException {
        row.members = members;
        row.processes = processes;
        int port;
        try (ServerSocketChannel channel = MasterPort.bindEphemeral("127.0.0.1")) {
            port = MasterPort.getPort(channel);
        }
        String secret = UUID.randomUUID().toString();
        for (int i = 0; i < processes; i++) {
            int first = first(i);
            jvms.add(
                    new MemberJvm(
                            new MemberTask(
                                    first,
                                    first(i + 1) - first,
                                    members,
                                    port,
                                    secret,
                                    heartbeatMillis,
                                    timeoutMillis)));
        }
    }

    private int first(int jvm) {
        if (jvm == 0) {
            return 0;
        }
        if (jvm == row.processes) {
            return row.members;
        }
        return 1 + (int) ((long) (jvm - 1) * (row.members - 2) / (row.processes - 2));
    }

    /** Lets all members join, and measures what they take. */
    void join() throws IOException, InterruptedException {
        List<MemberReport> empty = await(jvms);
        phase(null);
        row.joinSeconds = seconds(MemberProcess.JOIN);
        phase("join");
        TimeUnit.SECONDS.sleep(1); // threads that were needed for joining end
        List<MemberReport> joined = report();
        MemberReport first = joined.get(0);
        row.masterHeap = first.heap() - empty.get(0).heap();
        row.masterAnonymous = first.anonymous() - empty.get(0).anonymous();
        row.masterThreads = first.threads() - empty.get(0).threads();
        for (int i = 1; i < joined.size() - 1; i++) {
            int others = row.members - 2;
            row.memberHeap += (double) (joined.get(i).heap() - empty.get(i).heap()) / others;
            row.memberAnonymous +=
                    (double) (joined.get(i).anonymous() - empty.get(i).anonymous()) / others;
            row.memberThreads +=
                    (double) (joined.get(i).threads() - empty.get(i).threads()) / others;
        }
    }

    /** Lets all members exchange 8 bytes some times. */
    void exchange(int repeats) throws IOException {
        List<Double> times = new ArrayList<>();
        for (int i = 0; i < repeats; i++) {
            phase(null);
            times.add(seconds(MemberProcess.EXCHANGE));
            phase("exchange");
        }
        Collections.sort(times);
        row.exchangeSeconds = times.get(times.size() / 2);
    }

    /** Lets all members sum an array over connections between all pairs. */
    void reduce() throws IOException {
        row.reduceSeconds = seconds(MemberProcess.REDUCE);
        String sum = "" + row.members * (row.members - 1L) / 2f;
        if (!lastTexts.equals(Set.of(sum))) {
            throw new WorkerFailedException("The sum should be " + sum + ", not " + lastTexts);
        }
    }

    /** Lets all members do nothing for some seconds but live. */
    void idle(int seconds) throws IOException, InterruptedException {
        MemberReport start = report().get(0);
        phase(null);
        TimeUnit.SECONDS.sleep(seconds);
        phase("idle");
        MemberReport end = report().get(0);
        row.idleSeconds = seconds;
        row.masterCpu =
                (double) (end.cpuNanos() - start.cpuNanos()) / (end.nanos() - start.nanos());
    }

    /** Ends the last member, and measures until all others know it. */
    ControlPlaneRow end(End end) throws IOException {
        if (end == End.CLOSE) {
            seconds(MemberProcess.CLOSE);
            return row;
        }
        MemberJvm last = jvms.get(jvms.size() - 1);
        List<MemberJvm> others = jvms.subList(0, jvms.size() - 1);
        others.forEach(jvm -> jvm.tell(MemberProcess.AWAIT_FAILURE));
        phase(null);
        long start = System.nanoTime();
        switch (end) {
            case KILL:
                last.kill();
                break;
            case FREEZE:
                last.freeze();
                break;
            default:
                last.tell(MemberProcess.FAIL);
                break;
        }
        row.knownSeconds = latest(await(others), start);
        phase("failure");
        row.errors = lastTexts;
        return row;
    }

    private List<MemberReport> report() throws IOException {
        jvms.forEach(jvm -> jvm.tell(MemberProcess.REPORT));
        return await(jvms);
    }

    private double seconds(String command) throws IOException {
        long start = System.nanoTime();
        jvms.forEach(jvm -> jvm.tell(command));
        return latest(await(jvms), start);
    }

    private List<MemberReport> await(List<MemberJvm> some) throws IOException {
        List<MemberReport> reports = new ArrayList<>();
        lastTexts = new TreeSet<>();
        for (MemberJvm jvm : some) {
            MemberReport report = jvm.await();
            reports.add(report);
            lastTexts.add(report.text());
        }
        return reports;
    }

    private static double latest(List<MemberReport> reports, long start) {
        return reports.stream().mapToLong(each -> each.nanos() - start).max().orElse(0) / 1e9;
    }

    /** Counts what went over the loopback device since the last call to a phase. */
    private void phase(String name) throws IOException {
        LoopbackTraffic now = LoopbackTraffic.now();
        if (name != null) {
            row.traffic.put(name, now.since(before));
        }
        before = now;
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        jvms.forEach(MemberJvm::close);
    }
}
