package io.djltp.internal.collective.tcp;

import io.djltp.collective.CollectiveCall;
import io.djltp.collective.CollectiveException;
import io.djltp.collective.GroupFailure;
import io.djltp.collective.QueuedCommunicator;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.collective.local.BlockReduction;
import io.djltp.internal.torch.TensorBuffers;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.function.UnaryOperator;

/**
 * The {@code tcp} backend: CPU ranks of many processes and machines, each connected to each other
 * by a socket.
 *
 * <p>A large all-reduce is a reduce-scatter and an all-gather: every rank sends every other its
 * share, adds up what comes, and sends the sum to all. That moves as few bytes as a ring does, in
 * two steps instead of {@code 2 (p - 1)}, and adds in the order of the ranks: results are those of
 * the {@code local} backend, bit for bit. A small one is sent whole to all, in one step.
 */
public final class TcpCommunicator extends QueuedCommunicator {

    private static final long SMALL_BYTES = 1 << 15;

    private final PeerExchange exchange;
    private final int[] members; // the ranks of this group, as the connections are numbered
    private final Staging staging;
    private final BlockReduction reduction;
    private final UnaryOperator<CollectiveException> explanation;
    private final boolean ownsConnections; // and is not a part of another group

    /**
     * Creates a rank's end of the group of all ranks.
     *
     * @param peers the connection to every rank, {@code null} for this one; taken over
     * @param rank the rank
     * @param timeout how long an operation may take
     * @param failure where the group's failure is kept
     * @param explanation finds out why a rank is lost or silent, if something more is known; it may
     *     take a moment
     * @throws IOException if the connections cannot be used
     */
    public TcpCommunicator(
            SocketChannel[] peers,
            int rank,
            Duration timeout,
            GroupFailure failure,
            UnaryOperator<CollectiveException> explanation)
            throws IOException {
        super(rank, peers.length, timeout, failure);
        this.explanation = explanation;
        exchange = new PeerExchange(peers, rank, failure);
        members = new int[peers.length];
        Arrays.setAll(members, i -> i);
        staging = new Staging();
        reduction = new BlockReduction();
        ownsConnections = true;
        failure.onSet(
                () -> {
                    exchange.wakeUp();
                    runInTurn(exchange::close); // so that the others find out
                });
    }

    private TcpCommunicator(TcpCommunicator parent, int color, int rank, int[] members) {
        super(parent, color, rank, members.length);
        this.members = members;
        explanation = parent.explanation;
        exchange = parent.exchange;
        staging = parent.staging;
        reduction = parent.reduction;
        ownsConnections = false;
    }

    /** {@inheritDoc} */
    @Override
    protected void execute(CollectiveCall call) {
        switch (call.getCollective()) {
            case ALL_REDUCE:
                allReduce(call);
                break;
            case ALL_GATHER:
                allGather(call);
                break;
            case REDUCE_SCATTER:
                reduceScatter(call);
                break;
            case BROADCAST:
                broadcast(call);
                break;
            case ALL_TO_ALL:
                allToAll(call);
                break;
            default:
                run(call, i -> TensorBuffers.NONE, i -> TensorBuffers.NONE);
        }
    }

    private void run(
            CollectiveCall call, PeerExchange.Buffers sent, PeerExchange.Buffers received) {
        try {
            exchange.run(members, call, sent, received, getTimeout());
        } catch (IOException e) {
            throw explanation.apply(new CollectiveException(e.getMessage(), e.getCause()));
        }
    }

    private void allReduce(CollectiveCall call) {
        Tensor tensor = flat(call.getInput().tensor());
        long size = tensor.numel();
        if (call.getBytes() <= SMALL_BYTES) {
            Tensor[] all = staging.slots(tensor, size, getRank(), getSize());
            run(call, i -> TensorBuffers.of(tensor, 0, size), i -> staging.buffers(i, size));
            reduction.reduce(all, 0, size, call.getOp(), new Tensor[] {tensor}, 0);
            return;
        }
        ShardRange[] parts = balanced(size);
        ShardRange share = parts[getRank()];
        Tensor summand = tensor.narrow(0, share.start(), share.length());
        Tensor[] all = staging.slots(summand, share.length(), getRank(), getSize());
        run(call, i -> buffers(tensor, parts[i]), i -> staging.buffers(i, share.length()));
        reduction.reduce(all, 0, share.length(), call.getOp(), new Tensor[] {summand}, 0);
        run(call, i -> buffers(tensor, share), i -> buffers(tensor, parts[i]));
    }

    private void allGather(CollectiveCall call) {
        Tensor output = flat(call.getOutput().tensor());
        Tensor input = flat(call.getInput().tensor());
        ShardRange[] parts = ranges(call.getShares());
        run(call, i -> TensorBuffers.of(input, 0, input.numel()), i -> buffers(output, parts[i]));
        BlockReduction.copy(input, slice(output, parts[getRank()]));
    }

    private void reduceScatter(CollectiveCall call) {
        Tensor input = flat(call.getInput().tensor());
        Tensor output = flat(call.getOutput().tensor());
        ShardRange[] parts = ranges(call.getShares());
        long size = output.numel();
        Tensor summand = slice(input, parts[getRank()]);
        Tensor[] all = staging.slots(summand, size, getRank(), getSize());
        run(call, i -> buffers(input, parts[i]), i -> staging.buffers(i, size));
        reduction.reduce(all, 0, size, call.getOp(), new Tensor[] {output}, 0);
        if (getSize() == 1) {
            BlockReduction.copy(summand, output);
        }
    }

    /** The root sends a part to each rank, and the ranks send their parts to each other. */
    private void broadcast(CollectiveCall call) {
        Tensor tensor = flat(call.getInput().tensor());
        long size = tensor.numel();
        int root = call.getRoot();
        boolean isRoot = getRank() == root;
        if (call.getBytes() <= SMALL_BYTES || getSize() == 2) {
            ShardRange all = new ShardRange(0, size);
            run(
                    call,
                    i -> isRoot ? buffers(tensor, all) : TensorBuffers.NONE,
                    i -> i == root ? buffers(tensor, all) : TensorBuffers.NONE);
            return;
        }
        ShardRange[] parts = balanced(size);
        ShardRange share = parts[getRank()];
        run(
                call,
                i -> isRoot ? buffers(tensor, parts[i]) : TensorBuffers.NONE,
                i -> i == root ? buffers(tensor, share) : TensorBuffers.NONE);
        run(
                call,
                i -> i == root ? TensorBuffers.NONE : buffers(tensor, share),
                i -> isRoot ? TensorBuffers.NONE : buffers(tensor, parts[i]));
    }

    private void allToAll(CollectiveCall call) {
        Tensor input = flat(call.getInput().tensor());
        Tensor output = flat(call.getOutput().tensor());
        ShardRange[] from = ranges(call.getShares());
        ShardRange[] to = ranges(call.getReceivedShares());
        run(call, i -> buffers(input, from[i]), i -> buffers(output, to[i]));
        BlockReduction.copy(slice(input, from[getRank()]), slice(output, to[getRank()]));
    }

    /** {@inheritDoc} */
    @Override
    protected TcpCommunicator startSplit(CollectiveCall call, int color, int key) {
        ByteBuffer own = direct().putInt(color).putInt(key).flip();
        ByteBuffer[] places = new ByteBuffer[getSize()];
        Arrays.setAll(places, i -> i == getRank() ? own : direct());
        submit(
                        call,
                        () ->
                                run(
                                        call,
                                        i -> new ByteBuffer[] {own.duplicate()},
                                        i -> new ByteBuffer[] {places[i].duplicate()}))
                .await();
        List<Integer> part = new ArrayList<>();
        for (int i = 0; i < places.length; i++) {
            if (places[i].getInt(0) == color) {
                part.add(i);
            }
        }
        part.sort(Comparator.comparingInt(i -> places[i].getInt(4))); // stable
        int[] numbers = part.stream().mapToInt(i -> members[i]).toArray();
        return new TcpCommunicator(this, color, part.indexOf(getRank()), numbers);
    }

    private static ByteBuffer direct() {
        return ByteBuffer.allocateDirect(8).order(ByteOrder.BIG_ENDIAN);
    }

    private ShardRange[] balanced(long size) {
        return ranges(Cut.balanced(size, getSize()).getShardLengths());
    }

    private static ShardRange[] ranges(long[] shares) {
        ShardRange[] ranges = new ShardRange[shares.length];
        long start = 0;
        for (int i = 0; i < shares.length; i++) {
            ranges[i] = new ShardRange(start, shares[i]);
            start += shares[i];
        }
        return ranges;
    }

    private static ByteBuffer[] buffers(Tensor tensor, ShardRange range) {
        return TensorBuffers.of(tensor, range.start(), range.length());
    }

    private static Tensor slice(Tensor tensor, ShardRange range) {
        return tensor.narrow(0, range.start(), range.length());
    }

    private static Tensor flat(Tensor tensor) {
        return tensor.detach().view(-1);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        super.close();
        if (ownsConnections && isIdle()) { // what is in use is not freed
            reduction.close();
            staging.close();
            exchange.close();
        }
    }

    /**
     * Where the other ranks' summands go before they are added: memory that is kept from call to
     * call, and grows to what the largest of them needs.
     */
    private static final class Staging implements AutoCloseable {

        private static final int ALIGNMENT = 64;

        private Tensor bytes;
        private Tensor[] slots = {};

        /**
         * Returns the tensors of all ranks, in their order: this rank's summand, and a slot for
         * each other.
         *
         * @param summand this rank's tensor, flat
         * @param length the number of elements of each slot
         * @param rank this rank
         * @param size the number of ranks
         * @return the tensors
         */
        Tensor[] slots(Tensor summand, long length, int rank, int size) {
            long slot = (length * summand.element_size() + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
            reserve(slot * (size - 1));
            slots = new Tensor[size];
            int next = 0;
            for (int i = 0; i < size; i++) {
                if (i == rank) {
                    slots[i] = summand;
                } else {
                    slots[i] =
                            bytes.narrow(0, slot * next++, length * summand.element_size())
                                    .view(summand.scalar_type());
                }
            }
            return slots;
        }

        /** Returns the memory of a rank's slot. */
        ByteBuffer[] buffers(int rank, long length) {
            return TensorBuffers.of(slots[rank], 0, length);
        }

        private void reserve(long size) {
            if (bytes == null || bytes.numel() < size) {
                close();
                bytes =
                        torch.empty(new long[] {size}, new TensorOptions(ScalarType.Byte), null)
                                .retainReference(); // outlives the scope of the operation
            }
        }

        /** {@inheritDoc} */
        @Override
        public void close() {
            if (bytes != null) {
                bytes.close();
                bytes = null;
            }
            slots = new Tensor[0];
        }
    }
}
