package io.djltp.launch;

import java.util.Locale;

/** What carries out the collective operations between ranks. */
public enum Backend {
    /**
     * The one that fits: {@link #NCCL} for GPUs, {@link #LOCAL} for the CPU ranks of one process.
     */
    AUTO,
    /** Threads of one process that share its memory. */
    LOCAL,
    /** CPU ranks of many processes, connected by sockets. */
    TCP,
    /** CPU ranks of many processes, one in each, through Open MPI. */
    MPI,
    /** GPU ranks, through NVIDIA's NCCL. */
    NCCL;

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
