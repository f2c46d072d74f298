package io.djltp.examples.doctor;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.TensorView;

import java.nio.ByteBuffer;

/**
 * Times something that all ranks do at once: as many calls between two barriers as take about 20
 * ms, of which the slowest rank counts. Every rank has one and calls it at the same time.
 */
public final class CollectiveSeries {

    private static final long SERIES_NANOS = 20_000_000; // about how long a series takes
    private static final int MOST_CALLS = 2000;

    private final Communicator world;
    private final NDManager manager;
    private final Runnable call;
    private int calls = 3;

    /**
     * Prepares a series. How many calls it has is found out by the series before.
     *
     * @param world the ranks
     * @param manager the manager of temporary arrays
     * @param call what each rank does
     */
    public CollectiveSeries(Communicator world, NDManager manager, Runnable call) {
        this.world = world;
        this.manager = manager;
        this.call = call;
        seconds();
    }

    /**
     * Does a series.
     *
     * @return the time of one call on the slowest rank in seconds, the same on all ranks
     */
    public double seconds() {
        double one = agreed(series(calls)) / calls;
        // the first calls of a process are far slower than the later ones
        calls = (int) Math.max(2, Math.min(MOST_CALLS, SERIES_NANOS / 1e9 / one));
        return one;
    }

    private double series(int count) {
        world.barrier();
        long begin = System.nanoTime();
        for (int i = 0; i < count; i++) {
            call.run();
        }
        world.barrier(); // on a GPU, the queued operations are done only now
        return (System.nanoTime() - begin) / 1e9;
    }

    private double agreed(double value) {
        return agreed(world, manager, value);
    }

    /**
     * Returns the largest value of all ranks.
     *
     * @param world the ranks
     * @param manager the manager of a temporary array
     * @param value the value of this rank
     * @return the largest
     */
    static double agreed(Communicator world, NDManager manager, double value) {
        try (NDArray all = manager.create(value)) {
            world.allReduce(TensorView.of(all), ReduceOp.MAX).await();
            return all.getDouble();
        }
    }

    /**
     * Returns what an operation in shared memory can at best be: a copy, which reads and writes the
     * bytes once.
     *
     * @param bytes the number of bytes
     * @return what copies them
     */
    public static Runnable copy(int bytes) {
        ByteBuffer from = ByteBuffer.allocateDirect(bytes);
        ByteBuffer to = ByteBuffer.allocateDirect(bytes);
        return () -> to.clear().put(from.clear());
    }
}
