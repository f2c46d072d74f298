package io.djltp.jmh;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.torch.TensorView;

import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Threads;
import org.openjdk.jmh.annotations.Warmup;
import org.openjdk.jmh.infra.ThreadParams;

import java.util.List;
import java.util.concurrent.TimeUnit;

/** An all-reduce of two ranks in shared memory: a thousand of them, for both to do as many. */
@BenchmarkMode(Mode.SingleShotTime)
@OutputTimeUnit(TimeUnit.MILLISECONDS)
@Threads(AllReduceBenchmark.RANKS)
@Fork(1)
@Warmup(iterations = 10)
@Measurement(iterations = 10)
public class AllReduceBenchmark {

    static final int RANKS = 2;
    private static final int CALLS = 1000;

    /** The group. */
    @State(Scope.Benchmark)
    public static class Group {

        final List<Communicator> ranks = LocalCommunicator.create(RANKS);
    }

    /** What a rank's thread has. */
    @State(Scope.Thread)
    public static class Rank {

        /** The size of the array. */
        @Param({"4096", "1048576"})
        public int bytes;

        private NDManager manager;
        private TensorView array;
        private Communicator communicator;

        /**
         * Makes the array.
         *
         * @param group the group
         * @param thread which thread this is
         */
        @Setup(Level.Trial)
        public void begin(Group group, ThreadParams thread) {
            manager = NDManager.newBaseManager();
            array = TensorView.of(manager.zeros(new Shape(bytes / Float.BYTES)));
            communicator = group.ranks.get(thread.getThreadIndex());
        }

        /** Frees the array. */
        @TearDown(Level.Trial)
        public void end() {
            manager.close();
        }
    }

    /**
     * Reduces.
     *
     * @param rank the rank
     */
    @Benchmark
    public void thousandCalls(Rank rank) {
        for (int i = 0; i < CALLS; i++) {
            rank.communicator.allReduce(rank.array, ReduceOp.SUM).await();
        }
    }
}
