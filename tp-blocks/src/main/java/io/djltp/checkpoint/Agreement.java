package io.djltp.checkpoint;

import ai.djl.ndarray.NDManager;

import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.collective.Communicator;
import io.djltp.collective.GatheredNumbers;
import io.djltp.job.Job;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool.RankTask;
import io.djltp.training.TrainerState;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.LongStream;

/**
 * What all processes do, or none goes on with: if one fails, the others end with its error too.
 *
 * <p>One all-gather of a number a rank; a second one, of the text of the error, where one fails.
 */
final class Agreement {

    private static final int LONGEST = 1 << 14; // bytes of an error that others are told

    private final TrainerState state;

    Agreement(TrainerState state) {
        this.state = state;
    }

    /** A part of it. */
    @FunctionalInterface
    interface Task {
        void run() throws IOException;
    }

    /** A part of it that has a result. */
    @FunctionalInterface
    interface Source<T> {
        T get() throws IOException;
    }

    /** A part of it that a rank does. */
    @FunctionalInterface
    interface PartOfRank {
        void run(ParallelContext context) throws IOException;
    }

    /** What a failure is, for who hears of it in another process. */
    private enum Kind {
        FILES,
        ARGUMENT,
        STATE;

        static Kind of(Exception failure) {
            boolean files = failure instanceof IOException;
            return files ? FILES : failure instanceof IllegalArgumentException ? ARGUMENT : STATE;
        }

        Exception failure(String text) {
            return switch (this) {
                case FILES -> new CheckpointException(text);
                case ARGUMENT -> new IllegalArgumentException(text);
                case STATE -> new IllegalStateException(text);
            };
        }
    }

    /**
     * Does something in all processes. If it fails in one, it does in all, with one text that says
     * where and why.
     *
     * @param what what it is, after "could not"
     * @param task what is done
     * @throws IOException if files are the reason, in whichever process
     */
    void run(String what, Task task) throws IOException {
        Exception failure = failureOf(task);
        if (state.getRanks().isDistributed()) {
            byte[] said = failure == null ? new byte[0] : say(what, failure);
            byte[] first = state.getRanks().run(context -> firstOf(context, said)).get(0);
            failure = first.length == 0 ? null : heard(first, failure);
        }
        throwIfAny(failure);
    }

    /** Does something that has a result in all processes, as {@link #run} does. */
    <T> T get(String what, Source<T> source) throws IOException {
        AtomicReference<T> result = new AtomicReference<>();
        run(what, () -> result.set(source.get()));
        return result.get();
    }

    private static Exception failureOf(Task task) {
        try {
            task.run();
            return null;
        } catch (IOException | RuntimeException e) {
            return e;
        }
    }

    private static void throwIfAny(Exception failure) throws IOException {
        if (failure instanceof IOException io) {
            throw io;
        } else if (failure != null) {
            throw (RuntimeException) failure;
        }
    }

    /** Returns the kind of a failure, and what its text is in all processes. */
    private byte[] say(String what, Exception failure) {
        boolean plain = failure instanceof CheckpointException || failure.getMessage() != null;
        String why = plain ? failure.getMessage() : failure.toString();
        byte[] text = (self() + " could not " + what + ": " + why).getBytes(StandardCharsets.UTF_8);
        byte[] said = new byte[1 + Math.min(text.length, LONGEST)];
        said[0] = (byte) Kind.of(failure).ordinal();
        System.arraycopy(text, 0, said, 1, said.length - 1);
        return said;
    }

    private String self() {
        Job job = state.getConfig().getJob(); // without one there are no other processes
        return job.getMember(job.getProcess()).toString();
    }

    private static Exception heard(byte[] first, Exception own) {
        String text = new String(first, 1, first.length - 1, StandardCharsets.UTF_8);
        Exception failure = Kind.values()[first[0]].failure(text);
        if (own != null) {
            failure.initCause(own);
        }
        return failure;
    }

    /** Returns what the first process says that says anything; the first rank of each speaks. */
    private byte[] firstOf(ParallelContext context, byte[] said) {
        byte[] mine = context.getLocalIndex() == 0 ? said : new byte[0];
        return gather(context, mine, "the folder or the restoring of a checkpoint").stream()
                .filter(each -> each.length > 0)
                .findFirst()
                .orElse(new byte[0]);
    }

    /**
     * Gathers bytes of all ranks. All ranks call it.
     *
     * @param context the rank
     * @param own its bytes, maybe none
     * @param what what they are about, for the error of a rank that does not come
     * @return the bytes by rank
     */
    List<byte[]> gather(ParallelContext context, byte[] own, String what) {
        NDManager manager = state.getParameters().getStore(context).getManager();
        Communicator world = context.getWorld();
        long[] lengths = GatheredNumbers.of(world, manager, new long[] {own.length}, what);
        if (LongStream.of(lengths).allMatch(length -> length == 0)) {
            return Collections.nCopies(lengths.length, own);
        }
        long[] words = LongStream.of(lengths).map(Agreement::words).toArray();
        ByteBuffer buffer = ByteBuffer.allocate((int) words(own.length) * Long.BYTES).put(own);
        long[] numbers = new long[buffer.capacity() / Long.BYTES];
        buffer.rewind().asLongBuffer().get(numbers);
        long[] all = GatheredNumbers.of(world, manager, numbers, words, what);
        List<byte[]> gathered = new ArrayList<>();
        int at = 0;
        for (int rank = 0; rank < lengths.length; rank++) {
            int count = (int) words[rank];
            ByteBuffer bytes = ByteBuffer.allocate(count * Long.BYTES);
            bytes.asLongBuffer().put(all, at, count);
            gathered.add(Arrays.copyOf(bytes.array(), (int) lengths[rank]));
            at += count;
        }
        return gathered;
    }

    private static long words(long bytes) {
        return (bytes + Long.BYTES - 1) / Long.BYTES;
    }

    /**
     * Does something on all ranks of this process. What fails does not end the job.
     *
     * @param part what each rank does, without collective operations
     */
    void runOnRanks(PartOfRank part) throws IOException {
        RankTask<Exception> task = context -> failureOf(() -> part.run(context));
        List<Exception> failures = state.getRanks().run(task);
        for (Exception failure : failures) {
            throwIfAny(failure);
        }
    }
}
