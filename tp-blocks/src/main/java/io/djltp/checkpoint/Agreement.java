package io.djltp.checkpoint;

import ai.djl.ndarray.NDManager;

import io.djltp.collective.Communicator;
import io.djltp.internal.collective.GatheredNumbers;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool.RankTask;
import io.djltp.job.Job;
import io.djltp.training.TrainerState;

import org.jspecify.annotations.Nullable;

import java.io.Closeable;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.Callable;
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

    /** What a rank does. */
    @FunctionalInterface
    interface PartOfRank {
        void run(ParallelContext context) throws IOException;
    }

    /**
     * Does something in all processes. If it fails in one, it does in all, with one text that says
     * where and why; what others have opened is closed.
     *
     * @param what what it is, after "could not"
     * @param task what is done, which throws nothing but IOException and RuntimeException
     * @return what this process has of it
     * @throws IOException if files are the reason, in whichever process
     */
    <T> T run(String what, Callable<T> task) throws IOException {
        List<T> result = new ArrayList<>(1);
        Exception failure = null;
        try {
            result.add(task.call());
        } catch (Exception e) {
            failure = e;
        }
        if (state.getRanks().isDistributed()) {
            byte[] said = failure == null ? new byte[0] : say(what, failure);
            byte[] first =
                    gather(said, "the folder or the restoring of a checkpoint").stream()
                            .filter(each -> each.length > 0)
                            .findFirst()
                            .orElse(null);
            failure = first == null ? null : heard(first, failure);
        }
        if (failure != null && !result.isEmpty() && result.get(0) instanceof Closeable opened) {
            opened.close();
        }
        throwIfAny(failure);
        return result.get(0);
    }

    /**
     * Does something on all ranks of this process. What fails does not end the job.
     *
     * @param part what each rank does, without collective operations
     */
    void runOnRanks(PartOfRank part) throws IOException {
        RankTask<Optional<Exception>> task =
                context -> {
                    try {
                        part.run(context);
                        return Optional.empty();
                    } catch (IOException | RuntimeException e) {
                        return Optional.of(e);
                    }
                };
        for (Optional<Exception> failure : state.getRanks().run(task)) {
            throwIfAny(failure.orElse(null));
        }
    }

    private static void throwIfAny(@Nullable Exception failure) throws IOException {
        if (failure instanceof IOException io) {
            throw io;
        } else if (failure != null) {
            throw (RuntimeException) failure;
        }
    }

    /** Returns the kind of a failure, and what its text is in all processes. */
    private byte[] say(String what, Exception failure) {
        // without a job there are no other processes
        Job job = Objects.requireNonNull(state.getConfig().getJob(), "job");
        String kind =
                failure instanceof IOException
                        ? "F"
                        : failure instanceof IllegalArgumentException ? "A" : "S";
        String why = failure.getMessage() == null ? failure.toString() : failure.getMessage();
        String self = job.getMember(job.getProcess()).toString();
        byte[] text =
                (kind + self + " could not " + what + ": " + why).getBytes(StandardCharsets.UTF_8);
        return Arrays.copyOf(text, Math.min(text.length, LONGEST));
    }

    private static Exception heard(byte[] first, @Nullable Exception own) {
        String text = new String(first, 1, first.length - 1, StandardCharsets.UTF_8);
        return switch (first[0]) {
            case 'F' -> new CheckpointException(text, own);
            case 'A' -> new IllegalArgumentException(text, own);
            default -> new IllegalStateException(text, own);
        };
    }

    /**
     * Gathers bytes of all processes, of which the first rank speaks. All processes call it.
     *
     * @param said the bytes of this process, maybe none
     * @param what what they are about, for the error of a rank that does not come
     * @return the bytes by rank
     */
    List<byte[]> gather(byte[] said, String what) {
        return state.getRanks()
                .run(
                        context -> {
                            byte[] own = context.getLocalIndex() == 0 ? said : new byte[0];
                            return gather(context, own, what);
                        })
                .get(0);
    }

    private List<byte[]> gather(ParallelContext context, byte[] own, String what) {
        NDManager manager = state.getParameters().getStore(context).getManager();
        Communicator world = context.getWorld();
        long[] lengths = GatheredNumbers.of(world, manager, new long[] {own.length}, what);
        long[] numbers = new long[own.length];
        Arrays.setAll(numbers, i -> own[i]);
        boolean none = LongStream.of(lengths).allMatch(length -> length == 0);
        long[] all = none ? numbers : GatheredNumbers.of(world, manager, numbers, lengths, what);
        List<byte[]> gathered = new ArrayList<>();
        int at = 0;
        for (long length : lengths) {
            byte[] bytes = new byte[(int) length];
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] = (byte) all[at++];
            }
            gathered.add(bytes);
        }
        return gathered;
    }
}
