package io.djltp.collective;

/**
 * A collective operation under way.
 *
 * <p>On a backend with streams (NCCL) the operation is queued on a communication stream that waits
 * for what the current stream has queued before, and {@link #await()} makes the current stream wait
 * for the operation: the calling thread goes on. On a backend without streams {@link #await()}
 * blocks the thread.
 */
public interface Work {

    /** The work of an operation that is complete when its call returns. */
    Work DONE = () -> {};

    /**
     * Orders everything that the caller does next with the operation's tensors after the operation.
     *
     * @throws CollectiveException if the operation failed
     */
    void await();
}
