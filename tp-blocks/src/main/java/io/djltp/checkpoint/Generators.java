package io.djltp.checkpoint;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.collective.GatheredNumbers;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.RandomState;
import io.djltp.training.TrainerState;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Base64;

/**
 * The states of libtorch's generators on the CPU, one of each process: what DJL's own dropout, the
 * shuffling of data and blocks of one's own draw from.
 */
final class Generators {

    private static final String NAME = "generators";

    private Generators() {}

    /** Adds the states of all processes to values. All processes call it: one all-gather. */
    static void take(TrainerState state, JsonObject values) {
        byte[] own = bytes();
        long[] words = new long[(own.length + Long.BYTES - 1) / Long.BYTES];
        ByteBuffer buffer = ByteBuffer.allocate(words.length * Long.BYTES).put(own).rewind();
        buffer.asLongBuffer().get(words);
        long[] numbers = new long[words.length + 1];
        System.arraycopy(words, 0, numbers, 1, words.length);
        long[] all =
                state.getRanks()
                        .run(
                                context -> {
                                    long[] ofRank = numbers.clone();
                                    ofRank[0] = context.getLocalIndex();
                                    return gather(state, context, ofRank);
                                })
                        .get(0);
        JsonObject states = new JsonObject();
        for (int rank = 0; rank < all.length / numbers.length; rank++) {
            long[] ofRank =
                    Arrays.copyOfRange(all, rank * numbers.length, (rank + 1) * numbers.length);
            if (ofRank[0] == 0) { // the first rank of a process
                states.addProperty("" + rank, encode(ofRank, own.length));
            }
        }
        values.add(NAME, states);
    }

    private static byte[] bytes() {
        try (RandomState present = RandomState.save()) {
            return present.toBytes();
        }
    }

    private static long[] gather(TrainerState state, ParallelContext context, long... numbers) {
        return GatheredNumbers.of(
                context.getWorld(),
                state.getParameters().getStore(context).getManager(),
                numbers,
                "the generators of random numbers");
    }

    private static String encode(long[] ofRank, int length) {
        ByteBuffer buffer = ByteBuffer.allocate((ofRank.length - 1) * Long.BYTES);
        buffer.asLongBuffer().put(ofRank, 1, ofRank.length - 1);
        return Base64.getEncoder().encodeToString(Arrays.copyOf(buffer.array(), length));
    }

    /**
     * Reads the state of this process's generator.
     *
     * @return the state, or {@code null} if no process began with the same rank
     */
    static byte[] read(TrainerState state, SavedMembers saved) throws CheckpointException {
        String first = "" + state.getRanks().getContext(0).getRank();
        SavedMembers states = saved.object(NAME);
        states.get("0"); // with which a process begins in every job
        byte[] own = null;
        for (String rank : states.names()) {
            byte[] bytes = states.bytes(rank);
            own = rank.equals(first) ? bytes : own;
        }
        if (own != null) {
            RandomState.of(own).close(); // of the same version of libtorch
        }
        return own;
    }

    /** Puts back what {@link #read} has returned. */
    static void put(byte... own) {
        if (own != null) {
            try (RandomState stored = RandomState.of(own)) {
                stored.restore();
            }
        }
    }
}
