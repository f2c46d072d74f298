package io.djltp.spark;

import io.djltp.rank.ParallelMode;
import io.djltp.testing.Refusals;

import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** Jobs of ranks on two executors of Spark. */
public class TensorParallelSparkTest extends OnSpark {

    private static final Pattern SECRET = Pattern.compile("[0-9a-f]{64}");

    private static final String WAITING = "spark.scheduler.maxRegisteredResourcesWaitingTime";
    private static final byte[] NONE = {};
    private static final String FAILED =
            "rank 1 \\(task 1 of 2, executor \\d+ on \\S+, pid \\d+\\) failed: ";

    private final Path events;

    public TensorParallelSparkTest() throws IOException {
        this(Files.createTempDirectory("events"));
    }

    private TensorParallelSparkTest(Path events) {
        super(
                TWO_EXECUTORS,
                "spark.eventLog.enabled",
                "true",
                "spark.eventLog.compress",
                "false",
                "spark.eventLog.dir",
                events.toUri().toString());
        this.events = events;
    }

    @Test(timeOut = 120_000)
    public void trainsTwiceInTheSameSessionAsOnOneJvm() throws Exception {
        byte[] first = TensorParallelSpark.run(spark, 2, SmallTraining::train);
        byte[] second = TensorParallelSpark.run(spark, 2, SmallTraining::train);
        Assert.assertEquals(second, first);
        SparkRanks here =
                new SparkRanks(
                        0, 2, List.of(new SparkRanks.Place("", "driver", 0, 0, "")), 2, it -> {});
        byte[] alone = SmallTraining.train(here);
        Assert.assertEquals(alone, first, "the model of two ranks in one JVM");
    }

    @Test(timeOut = 120_000)
    public void tasksKnowTheirCoresAndRanks() {
        String told =
                TensorParallelSpark.builder()
                        .setRanks(4)
                        .optRanksPerTask(2)
                        .build()
                        .run(
                                spark.sparkContext(),
                                ranks -> {
                                    byte[] own =
                                            (ranks.getTask() + ":" + ranks.getFirstRank())
                                                    .getBytes(StandardCharsets.UTF_8);
                                    byte[][] all = ranks.getJob().exchange("told", own);
                                    return ranks.getTasks()
                                            + " tasks, "
                                            + ranks.getRanks()
                                            + " ranks, "
                                            + ranks.config()
                                                    .setMode(ParallelMode.TENSOR)
                                                    .build()
                                                    .getThreadsPerRank()
                                            + " thread "
                                            + Stream.of(all).map(String::new).toList();
                                });
        Assert.assertEquals(told, "2 tasks, 4 ranks, 1 thread [0:0, 1:2]");
    }

    /** Spark has made good what an executor lost in the stage before, once the ranks are there. */
    @Test(timeOut = 120_000)
    public void anExceptionOfATaskReachesTheDriver() {
        JavaRDD<Integer> rows =
                numbers(1, 2).map(TensorParallelSparkTest::endOfTheFirst).repartition(2);
        SparkJobException e =
                assertFails(
                        FAILED + "java.lang.IllegalStateException: boom 42",
                        () -> ranks(2).run(rows, (ranks, part) -> throwOnTask1(ranks)));
        Assert.assertEquals(e.getCause().getClass(), IllegalStateException.class);
        Assert.assertFalse(e.isExecutorLost(), "by the time that the ranks began");
        Assert.assertEquals(runOnce(), "0");
    }

    /** Spark itself ends an executor whose task threw what it takes for fatal. */
    @Test(timeOut = 120_000)
    public void anErrorOfATaskIsToldAndItsExecutorGoesOn() {
        String before = pids();
        for (Error thrown : List.of(new AssertionError("mine"), new StackOverflowError("mine"))) {
            SparkJobException e =
                    fails(
                            FAILED + thrown,
                            ranks -> {
                                if (ranks.getTask() == 1) {
                                    throw thrown;
                                }
                                return ranks.getJob().exchange("never", NONE);
                            });
            Assert.assertEquals(e.getCause().getClass(), thrown.getClass());
        }
        Assert.assertEquals(pids(), before);
    }

    private String pids() {
        return TensorParallelSpark.run(
                spark,
                2,
                ranks -> {
                    String pid = Long.toString(ProcessHandle.current().pid());
                    byte[][] all = ranks.getJob().exchange("pids", pid.getBytes());
                    return Stream.of(all).map(String::new).sorted().toList().toString();
                });
    }

    /** The next attempt says why there was one, where no executor comes in time. */
    @Test(timeOut = 120_000)
    public void aKilledExecutorIsNamed() {
        runOnce(); // both have come
        String killed = "(rank|task) 1.*executor \\d+ on \\S+.*";
        TensorParallelSpark twice =
                TensorParallelSpark.builder().setRanks(2).optMaxAttempts(2).build();
        SparkJobException e;
        spark.sparkContext().conf().set(WAITING, "0s");
        try {
            e =
                    assertFails(
                            "Attempt 2 of 2 could not begin: .* there are 1 slots on 1 executors .*,"
                                    + " after waiting 0 s .*"
                                    + WAITING
                                    + ".*; it was to follow this one: "
                                    + killed,
                            () ->
                                    twice.run(
                                            spark.sparkContext(),
                                            TensorParallelSparkTest::dieOnTask1));
        } finally {
            spark.sparkContext().conf().remove(WAITING);
        }
        Assert.assertTrue(e.isExecutorLost());
        Assert.assertTrue(e.getSuppressed()[0].getMessage().matches("(?s)" + killed));
        Assert.assertEquals(runOnce(), "0", "the next run, with a new executor");
    }

    private String runOnce() {
        return TensorParallelSpark.run(spark, 2, ranks -> Integer.toString(ranks.getFirstRank()));
    }

    @Test(timeOut = 60_000)
    public void fewerSlotsThanRanksAreToldAtOnce() {
        runOnce(); // the executors have come
        long begin = System.nanoTime();
        IllegalStateException e =
                Assert.expectThrows(
                        IllegalStateException.class,
                        () -> TensorParallelSpark.run(spark, 3, ranks -> 0));
        Assert.assertTrue((System.nanoTime() - begin) / 1e9 < 5, "at once");
        Assert.assertTrue(
                e.getMessage()
                        .startsWith(
                                "3 ranks, 1 in each task, need 3 tasks that run at the same time,"
                                        + " and there are 2 slots on 2 executors"),
                e.getMessage());
    }

    @Test(timeOut = 60_000)
    public void aKilledTaskEndsTheJob() {
        RuntimeException e = endedBy(me -> spark.sparkContext().cancelAllJobs());
        Assert.assertTrue(e.getMessage().contains("cancelled"), e.getMessage());
    }

    @Test(timeOut = 60_000)
    public void anInterruptOfTheCallerCancelsTheJob() {
        RuntimeException e = endedBy(Thread::interrupt);
        Assert.assertTrue(Thread.interrupted(), "what was heard is passed on");
        Assert.assertTrue(e.getMessage().contains("nterrupted"), e.getMessage());
        Assert.assertEquals(spark.sparkContext().statusTracker().getActiveJobIds().length, 0);
        Assert.assertEquals(runOnce(), "0");
    }

    /** Runs what has no end, and ends it. */
    private RuntimeException endedBy(Consumer<Thread> end) {
        Thread caller = Thread.currentThread();
        whenAJobRuns(
                () -> {
                    sleep(2000);
                    end.accept(caller);
                });
        long begin = System.nanoTime();
        RuntimeException e =
                Assert.expectThrows(
                        RuntimeException.class,
                        () ->
                                TensorParallelSpark.run(
                                        spark,
                                        2,
                                        ranks -> {
                                            while (ranks.getTask() == 0) {
                                                sleep(100_000); // deaf to interrupts
                                            }
                                            return ranks.getJob().exchange("never", NONE);
                                        }));
        Assert.assertTrue((System.nanoTime() - begin) / 1e9 < 20, e.toString());
        return e;
    }

    @Test(timeOut = 60_000)
    public void whoReturnsEarlyIsTold() {
        fails(
                "rank 1 .* has ended and takes no part in 'never'",
                ranks -> ranks.getTask() == 1 ? null : ranks.getJob().exchange("never", NONE));
    }

    @Test(timeOut = 60_000)
    public void aResultThatCannotBeSentIsTold() {
        fails(
                "The result of task 0 on executor \\d+ on \\S+ is not serializable:"
                        + " java.lang.Object.*",
                ranks -> new Object());
    }

    /** Spark's news are not awaited of a job that it has never begun. */
    @Test(timeOut = 60_000)
    public void whatCannotBeginIsToldAtOnce() {
        Object captured = new Object();
        failsAtOnce(
                "The function cannot be sent to the executors: it uses an object of"
                        + " java.lang.Object from outside of it.*",
                () -> TensorParallelSpark.run(spark, 2, ranks -> captured.toString()));
        JavaRDD<Integer> fewer = numbers(1, 2, 3).coalesce(2);
        failsAtOnce(".*RDD chain.*", () -> ranks(2).run(fewer, (ranks, rows) -> 0));
    }

    @Test(timeOut = 60_000)
    public void anExceptionThatCannotBeSentIsToldAtOnceInItsWords() {
        SparkJobException e =
                failsAtOnce(
                        FAILED + ".*Unsent: kept here",
                        () ->
                                TensorParallelSpark.run(
                                        spark,
                                        2,
                                        ranks -> {
                                            if (ranks.getTask() == 1) {
                                                throw new Unsent("kept here");
                                            }
                                            return ranks.getJob().exchange("never", NONE);
                                        }));
        Assert.assertFalse(e.isExecutorLost(), "it would throw again");
    }

    /** An exception with what is not serializable. */
    private static final class Unsent extends RuntimeException {

        private static final long serialVersionUID = 1L;

        @SuppressWarnings("serial")
        private final Object field = new Object();

        Unsent(String message) {
            super(message);
        }
    }

    /** Runs a job of two ranks that fails, and checks what is said of it. */
    private SparkJobException fails(String message, RankTraining<Object> training) {
        return assertFails(message, () -> TensorParallelSpark.run(spark, 2, training));
    }

    private static SparkJobException assertFails(String message, Assert.ThrowingRunnable action) {
        SparkJobException e = Assert.expectThrows(SparkJobException.class, action);
        Assert.assertTrue(e.getMessage().matches("(?s)" + message), e.getMessage());
        return e;
    }

    private JavaRDD<Integer> numbers(Integer... numbers) {
        return new JavaSparkContext(spark.sparkContext())
                .parallelize(List.of(numbers), numbers.length);
    }

    private static TensorParallelSpark ranks(int ranks) {
        return TensorParallelSpark.builder().setRanks(ranks).build();
    }

    private SparkJobException failsAtOnce(String message, Assert.ThrowingRunnable action) {
        runOnce(); // the executors have come
        long begin = System.nanoTime();
        SparkJobException e = assertFails(message, action);
        Assert.assertTrue((System.nanoTime() - begin) / 1e9 < 9, "after Spark's news were awaited");
        return e;
    }

    private static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    @Test(timeOut = 60_000)
    public void progressIsLoggedByTheDriver() {
        try (LogLines log = LogLines.of(TensorParallelSpark.class)) {
            TensorParallelSpark.run(
                    spark,
                    2,
                    ranks -> {
                        ranks.report("epoch 1 of 2 of task " + ranks.getTask());
                        Thread.sleep(2500);
                        ranks.report("epoch 2 of 2 of task " + ranks.getTask());
                        return 0;
                    });
            long end = System.nanoTime() + 5_000_000_000L;
            while (log.all().size() < 2 && System.nanoTime() < end) {
                sleep(50); // Spark tells its listeners in a thread of its own
            }
            Assert.assertEquals(
                    log.all(), List.of("epoch 1 of 2 of task 0", "epoch 2 of 2 of task 0"));
        }
    }

    /** It runs last: what all tests have written is looked at. */
    @Test(timeOut = 60_000, priority = 1)
    public void theSecretIsInNoLogAndNoEvent() throws IOException {
        Path executors = Path.of(System.getenv("SPARK_HOME"), "work");
        int barriers = 0;
        for (Path root : List.of(events, executors)) {
            try (Stream<Path> files = Files.walk(root)) {
                for (Path file : files.filter(Files::isRegularFile).toList()) {
                    String text = Files.readString(file, StandardCharsets.ISO_8859_1);
                    Assert.assertFalse(SECRET.matcher(text).find(), file.toString());
                    barriers += text.contains("global sync") ? 1 : 0;
                }
            }
        }
        Assert.assertTrue(barriers > 0, "the logs of barriers were written");
        Assert.assertEquals(Arrays.asList(events.toFile().list()).size(), 1);
    }

    @Test(timeOut = 60_000)
    public void theRowsMustBeInAsManyPartitionsAsTasks() {
        Refusals.throwsArgument(
                () -> ranks(2).run(numbers(1, 2, 3), (ranks, rows) -> 0), "3 partitions");
    }

    /** Ends the executor of the second row, the first time. */
    private static int endOfTheFirst(int row) {
        if (row == 2 && TaskContext.get().attemptNumber() == 0) {
            Runtime.getRuntime().halt(5);
        }
        return row;
    }

    private static Object throwOnTask1(SparkRanks ranks) {
        if (ranks.getTask() == 1) {
            throw new IllegalStateException("boom 42");
        }
        return ranks.getJob().exchange("never", NONE);
    }

    private static Object dieOnTask1(SparkRanks ranks) throws IOException {
        if (ranks.getTask() == 1) {
            long pid = ProcessHandle.current().pid();
            new ProcessBuilder("kill", "-9", Long.toString(pid)).start();
        }
        return ranks.getJob().exchange("never", NONE).length
                + ranks.getJob().exchange("nor this", NONE).length;
    }

    /** Memory is no cause of silence. */
    @Test
    public void aLostExecutorHasTheHintThatFits() {
        Assert.assertEquals(
                StageAttempt.Failure.lost(0, "2", "host", "Executor heartbeat timed out\n")
                        .message(),
                "task 0: executor 2 on host was lost (Executor heartbeat timed out). It stood"
                        + " still, or the network is down: Spark waits spark.network.timeout for"
                        + " its heartbeats");
        String killed =
                StageAttempt.Failure.lost(0, "2", "host", "Command exited with code 137").message();
        Assert.assertTrue(killed.contains("spark.executor.memoryOverhead"), killed);
        Assert.assertFalse(killed.contains("heartbeat"), killed);
    }
}
