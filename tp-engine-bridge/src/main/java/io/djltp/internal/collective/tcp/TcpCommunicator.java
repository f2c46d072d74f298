package io.djltp.internal.collective.tcp;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Work;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.collective.GroupFailure;
import io.djltp.internal.collective.local.BlockReduction;
import io.djltp.internal.sockets.RankChannel;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorBuffers;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;

/**
 * The {@code tcp} backend: CPU ranks of many processes and machines, each connected to each other
 * by a socket. A thread of the rank's own carries out one operation after another, while the rank
 * computes.
 *
 * <p>A large all-reduce is a reduce-scatter and an all-gather: every rank sends every other its
 * share, adds up what comes, and sends the sum to all. That moves as few bytes as a ring does, in
 * two steps instead of {@code 2 (p - 1)}, and adds in the order of the ranks: results are those of
 * the {@code local} backend, bit for bit. A small one is sent whole to all, in one step.
 *
 * <p>An operation that is under way when the group fails ends soon, and only then does {@link
 * Work#await()} throw: until then the tensors are in use.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class TcpCommunicator extends AbstractCommunicator {

    private static final Logger logger = LoggerFactory.getLogger(TcpCommunicator.class);

    private static final long SMALL_BYTES = 1 << 15;
    private static final long CLOSE_SECONDS = 5;

    private final Rank own;
    private final int[] members; // the ranks of this group, as the connections are numbered
    private final boolean isPart;

    /**
     * What the groups of a rank share.
     *
     * @param thread carries out the operations
     * @param timeout how long one may take, from when its turn has come
     * @param explanation finds out why a rank is lost or silent
     */
    private record Rank(
            PeerExchange exchange,
            Staging staging,
            BlockReduction reduction,
            ExecutorService thread,
            Duration timeout,
            UnaryOperator<CollectiveException> explanation) {}

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
            RankChannel[] peers,
            int rank,
            Duration timeout,
            GroupFailure failure,
            UnaryOperator<CollectiveException> explanation)
            throws IOException {
        super(rank, peers.length, failure);
        PeerExchange exchange = new PeerExchange(peers, rank, failure);
        ExecutorService thread =
                Executors.newSingleThreadExecutor(
                        task -> {
                            Thread worker = new Thread(task, "tp-collectives-" + rank);
                            worker.setDaemon(true);
                            return worker;
                        });
        thread.execute(() -> Autograd.setThreads(1)); // the cores are for computing
        own = new Rank(exchange, new Staging(), new BlockReduction(), thread, timeout, explanation);
        members = IntStream.range(0, peers.length).toArray();
        isPart = false;
        failure.onSet(
                () -> {
                    exchange.wakeUp();
                    try {
                        thread.execute(exchange::close); // so that the others find out
                    } catch (RejectedExecutionException e) {
                        return; // closed meanwhile, which does all that is to be done
                    }
                });
    }

    private TcpCommunicator(TcpCommunicator parent, int color, int rank, int[] members) {
        super(parent, color, rank, members.length);
        this.members = members;
        own = parent.own;
        isPart = true;
    }

    /** {@inheritDoc} */
    @Override
    public boolean isAsynchronous() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    protected String getBackend() {
        return "tcp";
    }

    /** {@inheritDoc} */
    @Override
    protected Work start(CollectiveCall call) {
        return submit(call, () -> execute(call));
    }

    private Work submit(CollectiveCall call, Runnable task) {
        QueuedWork work = new QueuedWork(call, task);
        try {
            own.thread.execute(work);
        } catch (RejectedExecutionException e) {
            getFailure().set(new CollectiveException("the group was closed before " + call, e));
            checkFailure();
        }
        return work;
    }

    /** Carries out an operation, and does not touch the tensors any more when it returns. */
    private void execute(CollectiveCall call) {
        switch (call.getCollective()) {
            case ALL_REDUCE -> allReduce(call);
            case ALL_GATHER -> allGather(call);
            case REDUCE_SCATTER -> reduceScatter(call);
            case BROADCAST -> broadcast(call);
            case ALL_TO_ALL -> allToAll(call);
            default -> run(call, i -> TensorBuffers.NONE, i -> TensorBuffers.NONE);
        }
    }

    private void run(
            CollectiveCall call, PeerExchange.Buffers sent, PeerExchange.Buffers received) {
        try {
            own.exchange.run(members, call, sent, received, own.timeout);
        } catch (IOException e) {
            throw own.explanation.apply(
                    new CollectiveException(String.valueOf(e.getMessage()), e.getCause()));
        }
    }

    private void allReduce(CollectiveCall call) {
        Tensor tensor = flat(call.getInput());
        boolean whole = call.getBytes() <= SMALL_BYTES;
        Cut parts = cut(whole, tensor);
        Tensor summand = slice(tensor, parts);
        reduce(call, tensor, parts, summand, summand);
        if (!whole) {
            run(call, i -> buffers(summand), i -> buffers(tensor, parts, i));
        }
    }

    private Cut cut(boolean whole, Tensor tensor) {
        long size = tensor.numel();
        return whole ? Cut.replicated(size, getSize()) : Cut.balanced(size, getSize());
    }

    /** Sends each rank its part of the input, and adds up what comes. */
    private void reduce(
            CollectiveCall call, Tensor input, Cut parts, Tensor summand, Tensor output) {
        Tensor[] all = own.staging.slots(summand, getRank(), getSize());
        run(call, i -> buffers(input, parts, i), i -> buffers(all[i]));
        own.reduction.reduce(all, 0, summand.numel(), call.getOp(), new Tensor[] {output}, 0);
    }

    private void allGather(CollectiveCall call) {
        Tensor output = flat(call.getOutput());
        Tensor input = flat(call.getInput());
        Cut parts = Cut.ofLengths(call.getShares());
        run(call, i -> buffers(input), i -> buffers(output, parts, i));
        BlockReduction.copy(input, slice(output, parts));
    }

    private void reduceScatter(CollectiveCall call) {
        Tensor input = flat(call.getInput());
        Tensor output = flat(call.getOutput());
        Cut parts = Cut.ofLengths(call.getShares());
        Tensor summand = slice(input, parts);
        reduce(call, input, parts, summand, output);
        if (getSize() == 1) {
            BlockReduction.copy(summand, output);
        }
    }

    /** The root sends a part to each rank, and the ranks send their parts to each other. */
    private void broadcast(CollectiveCall call) {
        Tensor tensor = flat(call.getInput());
        int root = call.getRoot();
        boolean isRoot = getRank() == root;
        boolean whole = call.getBytes() <= SMALL_BYTES || getSize() == 2;
        Cut parts = cut(whole, tensor);
        Tensor share = slice(tensor, parts);
        run(
                call,
                i -> isRoot ? buffers(tensor, parts, i) : TensorBuffers.NONE,
                i -> i == root ? buffers(share) : TensorBuffers.NONE);
        if (!whole) {
            run(
                    call,
                    i -> i == root ? TensorBuffers.NONE : buffers(share),
                    i -> isRoot ? TensorBuffers.NONE : buffers(tensor, parts, i));
        }
    }

    private void allToAll(CollectiveCall call) {
        Tensor input = flat(call.getInput());
        Tensor output = flat(call.getOutput());
        Cut from = Cut.ofLengths(call.getShares());
        Cut to = Cut.ofLengths(call.getReceivedShares());
        run(call, i -> buffers(input, from, i), i -> buffers(output, to, i));
        BlockReduction.copy(slice(input, from), slice(output, to));
    }

    /** {@inheritDoc} */
    @Override
    protected TcpCommunicator startSplit(CollectiveCall call, int color, int key) {
        ByteBuffer place = ByteBuffer.allocateDirect(8).putInt(color).putInt(key).flip();
        ByteBuffer[] places = new ByteBuffer[getSize()];
        Arrays.setAll(places, i -> i == getRank() ? place : ByteBuffer.allocateDirect(8));
        submit(
                        call,
                        () ->
                                run(
                                        call,
                                        i -> new ByteBuffer[] {place.duplicate()},
                                        i -> new ByteBuffer[] {places[i].duplicate()}))
                .await();
        List<Integer> part =
                IntStream.range(0, places.length)
                        .filter(i -> places[i].getInt(0) == color)
                        .boxed()
                        .sorted(Comparator.comparingInt(i -> places[i].getInt(4))) // stable
                        .toList();
        int[] numbers = part.stream().mapToInt(i -> members[i]).toArray();
        return new TcpCommunicator(this, color, part.indexOf(getRank()), numbers);
    }

    private static ByteBuffer[] buffers(Tensor tensor) {
        return TensorBuffers.of(tensor, 0, tensor.numel());
    }

    private static ByteBuffer[] buffers(Tensor tensor, Cut parts, int rank) {
        ShardRange range = parts.getRange(rank);
        return TensorBuffers.of(tensor, range.start(), range.length());
    }

    /** Returns the part of the rank. */
    private Tensor slice(Tensor tensor, Cut parts) {
        ShardRange own = parts.getRange(getRank());
        return tensor.narrow(0, own.start(), own.length());
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        if (isPart) {
            return; // the connections are those of the group of all ranks
        }
        own.thread.shutdown();
        if (!awaitThread()) {
            abort(new IllegalStateException("the group was closed"));
            if (!awaitThread()) {
                logger.warn("An operation of rank {} does not end", getRank());
            }
        }
        super.close();
        if (own.thread.isTerminated()) { // what is in use is not freed
            own.reduction.close();
            own.staging.close();
            own.exchange.close();
        }
    }

    private boolean awaitThread() {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(CLOSE_SECONDS);
        boolean interrupted = false;
        while (!own.thread.isTerminated() && System.nanoTime() < end) {
            try {
                own.thread.awaitTermination(end - System.nanoTime(), TimeUnit.NANOSECONDS);
            } catch (InterruptedException e) {
                interrupted = true; // memory is freed after this: the thread must have ended
                abort(e);
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        return own.thread.isTerminated();
    }

    /** An operation in the queue. */
    private final class QueuedWork implements Work, Runnable {

        private final CollectiveCall call;
        private final Runnable task;
        private final CountDownLatch done = new CountDownLatch(1);

        QueuedWork(CollectiveCall call, Runnable task) {
            this.call = call;
            this.task = task;
        }

        /** {@inheritDoc} */
        @Override
        public void run() {
            try (PointerScope scope = new PointerScope()) {
                if (!getFailure().isSet()) {
                    task.run();
                    call.finish();
                }
            } catch (CollectiveException e) {
                getFailure().set(e);
            } catch (Throwable t) {
                getFailure().set(call.failedOn(getWorldRank(), t));
            } finally {
                done.countDown();
            }
        }

        /** {@inheritDoc} */
        @Override
        public void await() {
            boolean interrupted = false;
            while (done.getCount() > 0) {
                try {
                    done.await();
                } catch (InterruptedException e) {
                    interrupted = true; // ends the group, but not the wait for the tensors
                    getFailure().set(call.interruptedOn(getWorldRank(), e));
                }
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
            if (!call.isFinished()) {
                checkFailure();
            }
        }
    }

    /**
     * Where the other ranks' summands go before they are added: memory that is kept from call to
     * call, and grows to what the largest of them needs.
     */
    private static final class Staging implements AutoCloseable {

        private static final int ALIGNMENT = 64;

        private @Nullable Tensor bytes;

        /**
         * Returns the tensors of all ranks, in their order: this rank's summand, and a slot of its
         * size for each other.
         */
        Tensor[] slots(Tensor summand, int rank, int size) {
            long length = summand.numel() * summand.element_size();
            long slot = (length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
            Tensor memory = reserve(slot * (size - 1));
            Tensor[] slots = new Tensor[size];
            for (int i = 0; i < size; i++) {
                long start = slot * (i < rank ? i : i - 1);
                slots[i] =
                        i == rank
                                ? summand
                                : memory.narrow(0, start, length).view(summand.scalar_type());
            }
            return slots;
        }

        private Tensor reserve(long size) {
            if (bytes == null || bytes.numel() < size) {
                close();
                bytes =
                        torch.empty(new long[] {size}, new TensorOptions(ScalarType.Byte), null)
                                .retainReference(); // outlives the scope of the operation
            }
            return bytes;
        }

        /** {@inheritDoc} */
        @Override
        public void close() {
            if (bytes != null) {
                bytes.close();
                bytes = null;
            }
        }
    }
}
