package io.djltp.examples.bench;

import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.bench.Floor.FloorProbe;
import io.djltp.examples.bench.WorkerProcess.WorkerTask;
import io.djltp.examples.bench.WorkerProcess.WorkerTask.Side;
import io.djltp.testing.Refusals;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;

/** A process that fails says why, and none is left behind. */
public class WorkerProcessTest {

    private static final Duration TIMEOUT = Duration.ofSeconds(60);
    private static final List<String> JAVA = WorkerProcess.command(BenchWorker.class);
    private static final WorkerTask FLOOR = WorkerTask.probe(Side.FLOOR, 1, 1, List.of(8L));
    private static final Workload SMALL = Workload.parse(Workload.Network.HEAD, "4x8x16", 0);

    private static WorkerTask ours(Workload workload) {
        return WorkerTask.ours(
                workload, OptimizerName.SGD, HeadKind.FUSED, 1, 1, Precision.FLOAT32);
    }

    private static Set<Long> children() {
        return ProcessHandle.current()
                .children()
                .filter(ProcessHandle::isAlive)
                .map(ProcessHandle::pid)
                .collect(Collectors.toSet());
    }

    @Test(timeOut = 120_000)
    public void testItsOwnErrorIsTold() throws IOException {
        Set<Long> before = children();
        // 3 ranks cannot share 2 classes: nobody asks before the network is made
        Workload tooFew = Workload.parse(Workload.Network.HEAD, "4x8x2", 0);
        WorkerTask bad =
                WorkerTask.ours(tooFew, OptimizerName.SGD, HeadKind.FUSED, 3, 1, Precision.FLOAT32);
        Refusals.expect(
                WorkerFailedException.class,
                () -> new Turns(List.of(ours(SMALL), bad), TIMEOUT, null),
                "this library on 3 ranks, 4x8x2 has failed: ",
                "rank");
        Assert.assertTrue(before.containsAll(children()), "the other process has not ended");
    }

    @Test(timeOut = 120_000)
    public void testStepsAskedForAtOnceAreAllMeasured() throws IOException {
        try (WorkerProcess worker = new WorkerProcess(ours(SMALL), TIMEOUT, JAVA)) {
            worker.awaitReady();
            long begin = System.nanoTime();
            List<double[]> steps = worker.steps(5);
            double seconds = (System.nanoTime() - begin) / 1e9;
            Assert.assertEquals(steps.size(), 5);
            Assert.assertTrue(steps.stream().allMatch(step -> step.length == 1 && step[0] > 0));
            double sum = steps.stream().mapToDouble(step -> step[0]).sum();
            Assert.assertTrue(sum < seconds, "one after another: " + sum + " of " + seconds);
            Assert.assertTrue(worker.peakResident() > 1 << 20, "the next answer is another one's");
        }
    }

    @Test(timeOut = 120_000)
    public void testATurnHasOneMedianForEachValue() throws IOException {
        BenchOptions options = new BenchOptions();
        options.repeats = 3;
        options.warmupSeconds = 0;
        try (Turns turns = new Turns(List.of(ours(SMALL), FLOOR), TIMEOUT, null)) {
            turns.run(options);
            Assert.assertEquals(turns.values(0, 0).size(), 3);
            Assert.assertTrue(turns.values(0, 0).stream().allMatch(seconds -> seconds > 0));
            int rate = FloorProbe.rateOf(Precision.FLOAT32);
            Assert.assertEquals(turns.values(1, rate).size(), 3);
            Assert.assertTrue(turns.values(1, rate).stream().allMatch(each -> each > 0));
        }
    }

    @Test(timeOut = 120_000)
    public void testADeadProcessIsMissed() throws IOException {
        Set<Long> before = children();
        try (WorkerProcess worker = new WorkerProcess(ours(SMALL), TIMEOUT, JAVA)) {
            worker.awaitReady();
            Assert.assertTrue(worker.step()[0] > 0);
            ProcessHandle.current()
                    .children()
                    .filter(child -> !before.contains(child.pid()))
                    .forEach(ProcessHandle::destroyForcibly);
            Refusals.expect(WorkerFailedException.class, worker::step, "has ended: status 137");
        }
    }

    @Test(timeOut = 120_000)
    public void testASilentProcessIsNotAwaitedForever() {
        Set<Long> before = children();
        // no JVM is ready in a millisecond
        Refusals.expect(
                WorkerFailedException.class,
                () -> new Turns(List.of(ours(SMALL)), Duration.ofMillis(1), null),
                "has not answered for 0 s");
        Assert.assertTrue(before.containsAll(children()), "the process has not ended");
    }
}
