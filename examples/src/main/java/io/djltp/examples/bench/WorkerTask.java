package io.djltp.examples.bench;

import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;
import io.djltp.torch.Precision;

import java.util.List;

/**
 * What a worker process measures.
 *
 * @param side whose time it takes
 * @param workload what is trained, or {@code null}
 * @param optimizer the optimizer, or {@code null}
 * @param head how the head is computed, or {@code null}
 * @param ranks the number of ranks
 * @param threads the threads of a rank
 * @param sizes the sizes of messages in bytes, of the floor the side of its matrices, or {@code
 *     null}
 * @param precision that of this library's products
 */
record WorkerTask(
        Side side,
        Workload workload,
        OptimizerName optimizer,
        HeadKind head,
        int ranks,
        int threads,
        List<Long> sizes,
        Precision precision) {

    /** In float32. */
    private WorkerTask(
            Side side,
            Workload workload,
            OptimizerName optimizer,
            HeadKind head,
            int ranks,
            int threads,
            List<Long> sizes) {
        this(side, workload, optimizer, head, ranks, threads, sizes, Precision.FLOAT32);
    }

    /** Returns the same task in another precision. */
    WorkerTask in(Precision other) {
        return new WorkerTask(side, workload, optimizer, head, ranks, threads, sizes, other);
    }

    /** Whose time is taken. */
    enum Side {
        /** This library. */
        OURS,
        /** DJL's own layers and trainer. */
        STOCK,
        /** PyTorch, in a process of Python. */
        PYTORCH,
        /** What the machine can do. */
        FLOOR,
        /** The operations between ranks. */
        COLLECTIVE
    }

    static WorkerTask ours(
            Workload workload, OptimizerName optimizer, HeadKind head, int ranks, int threads) {
        return new WorkerTask(Side.OURS, workload, optimizer, head, ranks, threads, null);
    }

    static WorkerTask stock(Workload workload, OptimizerName optimizer) {
        return new WorkerTask(Side.STOCK, workload, optimizer, null, 1, 1, null);
    }

    static WorkerTask pyTorch(Workload workload, OptimizerName optimizer, int threads) {
        return new WorkerTask(Side.PYTORCH, workload, optimizer, null, 1, threads, null);
    }

    static WorkerTask gloo(int ranks, int threads, List<Long> sizes) {
        return new WorkerTask(Side.PYTORCH, null, null, null, ranks, threads, sizes);
    }

    static WorkerTask floor(int side) {
        return new WorkerTask(Side.FLOOR, null, null, null, 1, 1, List.of((long) side));
    }

    static WorkerTask collective(int ranks, int threads, List<Long> sizes) {
        return new WorkerTask(Side.COLLECTIVE, null, null, null, ranks, threads, sizes);
    }

    /** Returns the process in words. */
    String describe() {
        switch (side) {
            case OURS:
                return "this library on "
                        + ranks
                        + (ranks == 1 ? " rank, " : " ranks, ")
                        + workload.shape()
                        + (precision == Precision.FLOAT32 ? "" : ", " + precision);
            case STOCK:
                return "stock DJL, " + workload.shape();
            case PYTORCH:
                return workload == null
                        ? "gloo between " + ranks + " ranks"
                        : "PyTorch, " + workload.shape();
            case FLOOR:
                return "the floor";
            default:
                return "the operations between " + ranks + " ranks";
        }
    }
}
