package io.djltp.collective.mpi;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.GroupFailure;
import io.djltp.collective.ReduceOp;
import io.djltp.torch.LibTorch;
import io.djltp.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;

import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;

/** A process of a job in which things go wrong; it reports what it is told of them. */
@SuppressWarnings("try") // a scope is used by being open
final class MpiFailures {

    private static final Duration LONG = Duration.ofSeconds(40);

    private MpiFailures() {}

    /**
     * Runs the process. It ends without an end of MPI: {@code mpirun} must notice.
     *
     * @param args what goes wrong
     * @throws Exception if anything else does
     */
    public static void main(String[] args) throws Exception {
        LibTorch.load();
        MpiWorld world = MpiWorld.start();
        switch (args[0]) {
            case "errors":
                disagree(world);
                countsDiffer(world);
                abortWhileWaiting(world);
                comeNever(world);
                world.close();
                MpiRun.report(world.getRank(), "again", failureOf(MpiWorld::start));
                break;
            case "create":
                if (world.getRank() == 0) {
                    waitForOthers(world);
                }
                sleep(2500);
                break;
            case "kill":
                kill(world, Duration.parse(args[1]));
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
    }

    private static MpiCommunicator create(MpiWorld world, Duration timeout) {
        return MpiCommunicator.create(world, timeout, new GroupFailure());
    }

    /** Every rank calls something else. */
    private static void disagree(MpiWorld world) {
        try (MpiCommunicator group = create(world, LONG);
                PointerScope scope = new PointerScope()) {
            TensorView tensor = TensorView.of(Tensor.create(new float[8]));
            Runnable[] calls = {
                () -> group.allReduce(tensor, ReduceOp.SUM).await(),
                () -> group.broadcast(tensor, 0).await(),
                group::barrier
            };
            MpiRun.report(world.getRank(), "disagreement", failureOf(calls[world.getRank()]));
            MpiRun.report(world.getRank(), "afterwards", failureOf(group::barrier));
        }
    }

    /** Rank 1 sends rank 2 more than it expects. */
    private static void countsDiffer(MpiWorld world) {
        try (MpiCommunicator group = create(world, LONG);
                PointerScope scope = new PointerScope()) {
            long[] sent = {2, 2, 2};
            long[] received = {2, 2, 2};
            sent[2] = world.getRank() == 1 ? 7 : 2;
            TensorView input = zeros(sent);
            TensorView output = zeros(received);
            MpiRun.report(
                    world.getRank(),
                    "counts",
                    failureOf(() -> group.allToAll(input, output, sent, received).await()));
        }
    }

    private static TensorView zeros(long[] counts) {
        return TensorView.of(Tensor.create(new float[(int) Arrays.stream(counts).sum()]));
    }

    /** All but the last rank wait for it in vain, and are told so by another thread. */
    private static void abortWhileWaiting(MpiWorld world) throws InterruptedException {
        try (MpiCommunicator group = create(world, LONG);
                PointerScope scope = new PointerScope()) {
            group.barrier();
            long began = System.nanoTime();
            if (world.getRank() < world.getSize() - 1) {
                TensorView tensor = TensorView.of(Tensor.create(new float[100_000]));
                Thread other = new Thread(() -> abortSoon(group));
                other.start();
                String failure = failureOf(() -> group.allReduce(tensor, ReduceOp.SUM).await());
                MpiRun.report(world.getRank(), "abort", failure);
                other.join();
            } else {
                abortSoon(group);
            }
            MpiRun.report(world.getRank(), "abort time", seconds(began));
        }
    }

    private static void abortSoon(Communicator group) {
        sleep(500);
        group.abort(new IllegalStateException("no more data"));
    }

    /** Rank 0 waits for the others until its time is over, in a part of the group. */
    private static void comeNever(MpiWorld world) {
        MpiCommunicator group = create(world, Duration.ofSeconds(1));
        Communicator part = group.split(0, 0);
        if (world.getRank() == 0) {
            try (PointerScope scope = new PointerScope()) {
                group.setIssuer("the test");
                part.setIssuer("the test");
                TensorView tensor = TensorView.of(Tensor.create(new float[] {1, 2, 3}));
                long began = System.nanoTime();
                String failure = failureOf(() -> part.allReduce(tensor, ReduceOp.SUM).await());
                MpiRun.report(0, "late", failure);
                MpiRun.report(0, "late time", seconds(began));
                MpiRun.report(0, "late group", failureOf(group::barrier));
            }
        } else {
            sleep(2000);
        }
        part.close();
        group.close();
    }

    private static void waitForOthers(MpiWorld world) {
        MpiRun.report(0, "create", failureOf(() -> create(world, Duration.ofSeconds(1))));
        MpiRun.report(0, "message", failureOf(() -> world.broadcast(new byte[3])));
    }

    /** The last rank is killed while the others wait for it. */
    private static void kill(MpiWorld world, Duration timeout) throws Exception {
        MpiCommunicator group = create(world, timeout);
        group.barrier();
        if (world.getRank() == world.getSize() - 1) {
            new ProcessBuilder("kill", "-9", String.valueOf(ProcessHandle.current().pid()))
                    .inheritIO()
                    .start();
            sleep(20_000);
        }
        try (PointerScope scope = new PointerScope()) {
            TensorView tensor = TensorView.of(Tensor.create(new float[100_000]));
            String failure = failureOf(() -> group.allReduce(tensor, ReduceOp.SUM).await());
            MpiRun.report(world.getRank(), "kill", failure);
        }
    }

    private static String failureOf(Runnable call) {
        try {
            call.run();
            return "none";
        } catch (CollectiveException e) {
            return e.getMessage();
        }
    }

    private static String seconds(long began) {
        return String.format(Locale.ROOT, "%.1f", (System.nanoTime() - began) / 1e9);
    }

    private static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
