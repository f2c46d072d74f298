package io.djltp.job;

import io.djltp.job.Jobs.Meeting;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** What a job says is not to be read on the wire. */
public class WireTest {

    // types of TLS records (RFC 8446, 5.1)
    private static final int CHANGE_CIPHER_SPEC = 20; // one byte, for old firewalls
    private static final int HANDSHAKE = 22;
    private static final int SEALED = 23;
    private static final int HEADER = 5;

    /** Joining, heartbeats with what the ranks do, exchanges, and a failure of either side. */
    @Test(timeOut = 60_000, dataProvider = "processes")
    public void nothingIsInClear(int failing) throws Exception {
        JobOptions.Builder options = Jobs.options(4);
        Meeting meeting = new Meeting(2, options);
        try (Proxy proxy = new Proxy(meeting.port, 0)) {
            List<Job> jobs =
                    meeting.with(() -> Jobs.join(1, 2, proxy.port(), options.build())).jobs();
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
            JobMember member = jobs.get(1).getMember(1);
            checkWords(proxy, 1500, "" + member.pid(), member.host() + "\"");
        }
    }

    @DataProvider
    public Object[][] processes() {
        return new Object[][] {{0}, {1}};
    }

    /** Why a process is refused, and who it is, is said in secret too. */
    @Test(timeOut = 60_000)
    public void noRefusalIsInClear() throws Exception {
        JobOptions newer = Jobs.options(4).optVersion("version-of-2").build();
        Meeting meeting = new Meeting(2, Jobs.options(4));
        try (Proxy proxy = new Proxy(meeting.port, 0)) {
            meeting.with(() -> Jobs.join(1, 2, proxy.port(), newer)).fails(".*version-of-2.*");
            checkWords(proxy, 800);
        }
    }

    private static void checkWords(Proxy proxy, int least, String... more) {
        List<String> words = new ArrayList<>(List.of(more));
        words.addAll(List.of("rank", "process", "part-of", "name-of", "all-reduce", "text-of"));
        words.addAll(List.of("Exception", "version", Jobs.LOOPBACK));
        int bytes = 0;
        boolean hello = false;
        for (byte[] side : proxy.recorded()) {
            String wire = new String(side, StandardCharsets.ISO_8859_1);
            words.forEach(word -> Assert.assertFalse(wire.contains(word), word));
            hello |= wire.contains("djltp job"); // the name of the key, which is in clear
            checkRecords(side);
            bytes += side.length;
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

    /**
     * Whom the door drops before it is let in comes again: the first connections end with the
     * member's second message, its hello.
     */
    @Test(timeOut = 120_000)
    public void aMemberThatWasDroppedAtTheDoorComesAgain() throws Exception {
        Duration patience = Duration.ofSeconds(60); // on a busy machine
        JobOptions.Builder options =
                Jobs.options(2).optTimeout(patience).optHeartbeatTimeout(patience);
        Meeting meeting = new Meeting(2, options);
        try (Proxy proxy = new Proxy(meeting.port, 2)) {
            List<Job> jobs =
                    meeting.with(() -> Jobs.join(1, 2, proxy.port(), options.build())).jobs();
            Assert.assertEquals(proxy.connections(), 3);
            List<Integer> heard =
                    Jobs.inParallel(jobs, job -> job.exchange("numbers", new byte[1]).length);
            Assert.assertEquals(heard, List.of(2, 2));
            Jobs.closeAll(jobs);
        }
    }
}
