package io.djltp.collective;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.torch.TensorView;

import org.jspecify.annotations.Nullable;

/**
 * One rank's end of a group of ranks that compute together.
 *
 * <p>All ranks of a group call the same operations in the same order, with the same data type and
 * sizes. A rank that calls something else, fails or never comes ends in a {@link
 * CollectiveException} on every rank, within the time-out of the group, and the group is of no use
 * afterwards.
 *
 * <p>Tensors are contiguous and lie in the memory of the rank's device: float32, float64, float16,
 * bfloat16, int32 or int64, of any size, empty ones included. An operation may be asynchronous: the
 * tensors must not be touched or freed before {@link Work#await()} has returned.
 *
 * <p>Shares may differ between ranks: {@code counts} holds the number of elements of each rank's
 * share, in the order of the ranks, and is the same on all ranks.
 *
 * <p>An instance belongs to the threads of one rank and is used by one of them at a time.
 */
public interface Communicator extends AutoCloseable {

    /**
     * Returns this rank's number in the group.
     *
     * @return the rank, from 0
     */
    int getRank();

    /**
     * Returns the number of ranks in the group.
     *
     * @return the size
     */
    int getSize();

    /**
     * Replaces a tensor on every rank by the reduction over all ranks.
     *
     * @param tensor the tensor, reduced in place
     * @param op the reduction
     * @return the work
     */
    Work allReduce(TensorView tensor, ReduceOp op);

    /**
     * Gathers the tensors of all ranks, one after another, on every rank.
     *
     * @param input this rank's share, {@code counts[rank]} elements; may be the rank's own place in
     *     {@code output}
     * @param output where all shares go, the sum of {@code counts} elements
     * @param counts the number of elements of each rank's share
     * @return the work
     */
    Work allGather(TensorView input, TensorView output, long[] counts);

    /**
     * Reduces a tensor over all ranks and leaves each rank its share of the result.
     *
     * @param input the sum of {@code counts} elements
     * @param output where this rank's share goes, {@code counts[rank]} elements; may be the rank's
     *     own place in {@code input}
     * @param counts the number of elements of each rank's share
     * @param op the reduction
     * @return the work
     */
    Work reduceScatter(TensorView input, TensorView output, long[] counts, ReduceOp op);

    /**
     * Replaces a tensor on every rank by that of one rank.
     *
     * @param tensor the tensor
     * @param root the rank whose tensor it becomes
     * @return the work
     */
    Work broadcast(TensorView tensor, int root);

    /**
     * Sends a share of a tensor to every rank and receives one from each. What a rank sends to
     * another must have the size that the other expects of it.
     *
     * @param input the shares for all ranks, one after another
     * @param output where the shares of all ranks go, one after another
     * @param inputCounts the number of elements that go to each rank
     * @param outputCounts the number of elements that come from each rank
     * @return the work
     */
    Work allToAll(TensorView input, TensorView output, long[] inputCounts, long[] outputCounts);

    /**
     * Waits until all ranks have come.
     *
     * @throws CollectiveException if one of them does not come
     */
    void barrier();

    /**
     * Forms new groups of the ranks of this one: those with the same color compute together. All
     * ranks call it. On a mesh of {@code data x tensor} ranks, rank {@code d * tensor + t} finds
     * its tensor group by {@code split(d, t)} and its data group by {@code split(t, d)}.
     *
     * <p>A rank uses this group and those made of it by turns, and may begin an operation on one
     * before one on another is done. Its operations are carried out in the order of its calls,
     * whatever their groups. So the operations of all groups must have one order that the calls of
     * every rank follow, as they have where all ranks run the same program. Otherwise ranks may
     * wait for each other in a circle until the time-out: rank 0 for 1, which waits for 3, which
     * waits for 2, which waits for 0.
     *
     * @param color which group this rank joins, 0 or more
     * @param key the order of the ranks in the new group; equal keys keep the order they have here
     * @return this rank's end of the new group, to be closed by the caller; it ends when this one
     *     fails or is aborted
     */
    default Communicator split(int color, int key) {
        return split(color, key, "");
    }

    /**
     * Forms new groups, as {@link #split(int, int)} does, of which errors say what they are.
     *
     * @param color which group this rank joins, 0 or more
     * @param key the order of the ranks in the new group
     * @param groups what the new groups are, such as {@code axis tensor}, or empty; the same on all
     *     ranks
     * @return this rank's end of the new group
     */
    Communicator split(int color, int key, String groups);

    /**
     * Returns whether operations go on while the caller does something else, until {@link
     * Work#await()}.
     *
     * @return whether the operations are asynchronous
     */
    boolean isAsynchronous();

    /**
     * Says who issues the operations from here on: a layer, a loss, the trainer. Errors name it.
     *
     * @param issuer a short name, or {@code null}
     */
    void setIssuer(@Nullable String issuer);

    /**
     * Ends the group: ranks that wait in an operation, and all that call one later, get a {@link
     * CollectiveException} with this cause. The first call counts. Any thread may call it.
     *
     * @param cause why
     */
    void abort(Throwable cause);

    /**
     * Returns what this rank has called so far.
     *
     * @return a snapshot of the counts
     */
    CollectiveCounts getCounts();

    /** Frees what the rank holds of the group. Does not wait for other ranks. */
    @Override
    void close();

    /**
     * Replaces an array on every rank by the reduction over all ranks, and waits for it.
     *
     * @param array the array, reduced in place
     * @param op the reduction
     */
    default void allReduce(NDArray array, ReduceOp op) {
        allReduce(TensorView.of(array), op).await();
    }
}
