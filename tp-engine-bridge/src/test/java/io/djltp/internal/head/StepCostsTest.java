package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;
import ai.djl.pytorch.jni.JniUtils;

import com.sun.management.ThreadMXBean;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.testing.LockCounter;

import org.bytedeco.javacpp.tools.Logger;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;

/**
 * What a step of a head costs beside its arithmetic, on more threads and ranks than there are
 * processors: the tensors and numbers that JavaCPP makes, the locks that are taken for them and in
 * this library, the bytes of Java objects, and the operators of libtorch that the thread of the
 * first rank runs. It grows with chunks, threads and ranks, and no faster.
 */
public class StepCostsTest {

    private static final int CHUNK = 256;

    /** Of both passes over a chunk in which there is a label. */
    private static final int OBJECTS_OF_CHUNK = 14;

    private static final int BYTES_OF_CHUNK = 8192;
    private static final int OPERATORS_OF_CHUNK = 55;
    private static final int LOCKS_OF_CHUNK = 40;

    private record Costs(double objects, double bytes, long operators, long locks) {

        Costs minus(Costs other) {
            return new Costs(
                    objects - other.objects,
                    bytes - other.bytes,
                    operators - other.operators,
                    locks - other.locks);
        }

        void assertAtMost(double mostObjects, double mostBytes, double mostLocks, String of) {
            Assert.assertTrue(objects <= mostObjects, of + ": " + objects + " of " + mostObjects);
            Assert.assertTrue(bytes <= mostBytes, of + ": " + bytes + " of " + mostBytes);
            Assert.assertTrue(locks <= mostLocks, of + ": " + locks + " of " + mostLocks);
        }
    }

    @Test(timeOut = 60_000)
    public void aChunkCostsLittle() throws Exception {
        Costs more = costs(1, 1, 64).minus(costs(1, 1, 32));
        more.assertAtMost(
                32 * OBJECTS_OF_CHUNK, 32 * BYTES_OF_CHUNK, 32 * LOCKS_OF_CHUNK, "32 chunks");
        Assert.assertEquals(more.operators, 32 * OPERATORS_OF_CHUNK, "operators of 32 chunks");
    }

    @Test(timeOut = 60_000)
    public void threadsCostAlike() throws Exception {
        Costs one = costs(1, 1, 64);
        Costs second = costs(1, 2, 64).minus(one);
        for (int threads : new int[] {8, 32}) {
            int others = threads - 1;
            Costs more = costs(1, threads, 64).minus(one);
            more.assertAtMost(
                    1.2 * others * second.objects,
                    1.5 * others * second.bytes,
                    1.2 * others * second.locks,
                    threads + " threads");
            // of the chunks, a thread has its share
            int chunks = 64 / threads - 64;
            Assert.assertTrue(
                    more.operators <= chunks * OPERATORS_OF_CHUNK + 4 * others, "" + more);
        }
    }

    @Test(timeOut = 60_000)
    public void ranksCostAlike() throws Exception {
        Costs two = costs(2, 1, 64);
        for (int ranks : new int[] {4, 8}) {
            double times = 1.1 * ranks / 2;
            Costs costs = costs(ranks, 1, 64);
            costs.assertAtMost(
                    times * two.objects, times * two.bytes, times * two.locks, ranks + " ranks");
            int chunks = 64 / ranks - 64 / 2;
            Assert.assertTrue(
                    costs.minus(two).operators <= chunks * OPERATORS_OF_CHUNK + 6 * ranks,
                    costs + " after " + two);
        }
    }

    /** Returns what a step of all ranks costs, each chunk of which has labels. */
    private static Costs costs(int ranks, int threads, int chunks) throws Exception {
        HeadReference data = new HeadReference(64, 16, chunks * CHUNK);
        for (int i = 0; i < 64; i++) {
            data.labels[i] = (long) i * chunks / 64 * CHUNK;
        }
        Cut cut = Cut.balanced(data.classes, ranks);
        AtomicLong objects = new AtomicLong(Long.MAX_VALUE);
        AtomicLong bytes = new AtomicLong(Long.MAX_VALUE);
        AtomicLong locks = new AtomicLong(Long.MAX_VALUE);
        Path trace = Files.createTempFile("step", ".json");
        RankThreads.run(
                ranks,
                (group, manager) -> {
                    Autograd.setThreads(threads);
                    NDArray w = data.weight(manager, cut.getRanges(group.getRank()));
                    NDArray x = data.x(manager);
                    NDArray labels = data.labels(manager);
                    WeightUpdate update = HeadStep.rateOne();
                    try (ChunkedHead fused =
                            new ChunkedHead(group, cut, 1 << 24, CHUNK, HeadStep.FLOAT32)) {
                        Runnable step = () -> HeadStep.train(fused, x, w, labels, update, 1);
                        boolean isFirst = group.getRank() == 0;
                        for (int i = 0; i < 3; i++) {
                            step.run();
                        }
                        group.barrier();
                        if (isFirst) {
                            JniUtils.startProfile(false, false, false);
                        }
                        step.run();
                        if (isFirst) {
                            JniUtils.stopProfile(trace.toString());
                        }
                        least(group, StepCostsTest::allocated, step, bytes);
                        JavaCppObjects counted = isFirst ? new JavaCppObjects() : null;
                        least(group, () -> isFirst ? counted.count.get() : 0, step, objects);
                        if (isFirst) {
                            counted.end();
                        }
                        LockCounter counter = isFirst ? new LockCounter() : null;
                        least(group, () -> isFirst ? counter.taken() : 0, step, locks);
                        if (isFirst) {
                            counter.close();
                        }
                        group.barrier();
                    }
                });
        long operators =
                Files.readString(trace).lines().filter(it -> it.contains("\"ph\"")).count();
        Files.delete(trace);
        return new Costs(objects.get(), bytes.get(), operators, locks.get());
    }

    /**
     * Sets by how much a count grows in a step: the least of five, because code that is not
     * compiled yet, and the thread that frees what the garbage collector finds, add to it.
     */
    private static void least(
            Communicator group, LongSupplier counted, Runnable step, AtomicLong least) {
        for (int i = 0; i < 5; i++) {
            group.barrier();
            long before = counted.getAsLong();
            group.barrier();
            step.run();
            group.barrier();
            long grown = counted.getAsLong() - before;
            if (group.getRank() == 0) {
                least.accumulateAndGet(grown, Math::min);
            }
        }
    }

    /** Returns the bytes that all threads have allocated. */
    private static long allocated() {
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        return Arrays.stream(threads.getThreadAllocatedBytes(threads.getAllThreadIds()))
                .filter(bytes -> bytes > 0) // of a thread that is there
                .sum();
    }

    /** Counts the objects that JavaCPP registers to be freed, which its logger tells. */
    private static final class JavaCppObjects {

        private final AtomicLong count = new AtomicLong();
        private final PrintStream before = System.err;

        JavaCppObjects() throws ReflectiveOperationException {
            System.setErr(
                    new PrintStream(OutputStream.nullOutputStream()) {
                        @Override
                        public void println(String line) {
                            if (line == null || !line.startsWith("Debug: ")) {
                                before.println(line);
                            } else if (line.startsWith("Debug: Registering ")) {
                                count.incrementAndGet();
                            }
                        }
                    });
            log(true);
        }

        void end() throws ReflectiveOperationException {
            log(false);
            System.setErr(before);
        }

        private static void log(boolean debug) throws ReflectiveOperationException {
            Field field = Logger.class.getDeclaredField("debug");
            field.setAccessible(true);
            field.setBoolean(null, debug);
        }
    }
}
