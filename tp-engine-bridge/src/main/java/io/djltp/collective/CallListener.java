package io.djltp.collective;

/** Is told of the collective operations of a rank. */
@FunctionalInterface
public interface CallListener {

    /**
     * Is told of a call in a group of several ranks, in the thread that has called.
     *
     * @param call the call, complete or on its way
     * @param size the number of ranks of the group
     * @param direction what the rank is doing
     */
    void called(CollectiveCall call, int size, Direction direction);
}
