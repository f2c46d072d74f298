package io.djltp.llm;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.internal.Errors;
import io.djltp.internal.decode.RankThread;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.TensorView;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.FloatBuffer;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;

/**
 * A model on all ranks, for generation. In a job of several processes, all of them compute the same
 * steps: because they make the same calls or, with a leader, because process 0 sends each step to
 * the others, as one broadcast if it is small.
 */
final class Decoder implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(Decoder.class);

    private static final int MOST_IDS = 1 << 24; // that a float tells apart
    private static final int SENT = 1024; // numbers, with the first part of a step
    private static final Duration LONGEST_PAUSE = Duration.ofSeconds(10);

    private final ModelConfig config;
    private final Size size;
    private final ModelRanks<RankDecoder> ranks;
    private final RankPool pool; // theirs
    private final boolean isLed;
    private final Duration pause;
    private boolean closed;

    /** For how many texts there is room, of how many tokens, with how many rows of a step. */
    record Size(int batch, int length, int rows) {}

    Decoder(
            ModelConfig config,
            Path folder,
            @Nullable Adapter adapter,
            WeightType type,
            ParallelConfig parallel,
            Size size,
            boolean leader)
            throws IOException {
        this.config = config;
        this.size = size;
        Duration quarter = parallel.getTimeout().dividedBy(4);
        pause = quarter.compareTo(LONGEST_PAUSE) < 0 ? quarter : LONGEST_PAUSE;
        Errors.check(
                config.getVocabularySize() <= MOST_IDS,
                "The model has %s token ids, and generation knows up to %s",
                config.getVocabularySize(),
                MOST_IDS);
        String settings =
                "%s, %s, optLeader(%s), %s"
                        .formatted(type, size, leader, adapter == null ? "no adapter" : "adapter");
        boolean several = parallel.getLocalRanks() > 1 || parallel.getThreadsPerRank() == 1;
        ranks =
                new ModelRanks<>(
                        config,
                        folder,
                        parallel,
                        settings,
                        (context, files, shared) -> {
                            if (several) {
                                RankThread.computeAlone();
                            }
                            try (NDManager manager =
                                    NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
                                return new RankDecoder(
                                        config,
                                        files,
                                        adapter,
                                        type,
                                        context.getTensorGroup(),
                                        shared,
                                        size,
                                        manager);
                            }
                        });
        RankThread.giveBackMemory();
        pool = ranks.pool();
        isLed = leader && pool.isDistributed();
    }

    ModelConfig config() {
        return config;
    }

    Size size() {
        return size;
    }

    int ranks() {
        return pool.getWorldSize();
    }

    /** Returns the memory of weights and cache of each rank of this process. */
    List<Long> bytes() {
        return ranks.parts().stream().map(RankDecoder::bytes).toList();
    }

    String kernel() {
        return ranks.parts().get(0).kernel();
    }

    /** Returns whether there are ranks in other processes. */
    boolean isDistributed() {
        return pool.isDistributed();
    }

    /** Returns whether steps come from process 0. */
    boolean isLed() {
        return isLed;
    }

    /** Returns whether this is one of the processes to which they come. */
    boolean isFollower() {
        return isLed && pool.getContext(0).getRank() > 0;
    }

    /** Returns how long the leader may pause between two steps. */
    Duration pause() {
        return pause;
    }

    /** Computes the steps of process 0 until it ends. */
    void follow() {
        pool.setInterruptible(true); // it may be long
        pool.runAll(
                context -> {
                    int[] step = broadcast(context, new int[0]);
                    while (step.length > 0) {
                        compute(context, DecoderStep.of(step));
                        step = broadcast(context, step);
                    }
                });
    }

    /** Sends numbers to all ranks, and returns those of rank 0. */
    private static int[] broadcast(ParallelContext context, int[] mine) {
        int[] first = Arrays.copyOf(mine, SENT);
        first[SENT - 1] = mine.length;
        first = broadcastOnce(context, first);
        int[] all = Arrays.copyOf(first, first[SENT - 1]);
        int left = all.length - SENT + 1;
        if (left > 0) {
            boolean sends = context.getRank() == 0;
            int[] rest = sends ? Arrays.copyOfRange(mine, SENT - 1, mine.length) : new int[left];
            System.arraycopy(broadcastOnce(context, rest), 0, all, SENT - 1, left);
        }
        return all;
    }

    private static int[] broadcastOnce(ParallelContext context, int[] mine) {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            NDArray array = manager.create(mine);
            context.getTensorGroup().broadcast(TensorView.of(array), 0).await();
            return array.toIntArray();
        }
    }

    private DecoderStep.Choice[] compute(ParallelContext context, DecoderStep step)
            throws IOException {
        return step.count() == 0
                ? new DecoderStep.Choice[0]
                : ranks.compute(context, rank -> rank.choose(step));
    }

    /** Computes a step, and returns the tokens that it asks for. */
    DecoderStep.Choice[] choose(DecoderStep step) {
        int[] sent = isLed ? step.toInts() : new int[0];
        List<DecoderStep.Choice[]> parts =
                pool.run(
                        context -> {
                            if (isLed) {
                                broadcast(context, sent);
                            }
                            return compute(context, step);
                        });
        DecoderStep.Choice[] choices = parts.get(0).clone();
        for (int i = 0; i < choices.length; i++) {
            if (choices[i].logits() != null) {
                FloatBuffer logits = FloatBuffer.allocate(config.getVocabularySize());
                for (DecoderStep.Choice[] part : parts) {
                    logits.put(part[i].logits());
                }
                choices[i] = new DecoderStep.Choice(choices[i].id(), List.of(), logits.array());
            }
        }
        return choices;
    }

    /** Returns the features that the logits of the last step were made of, [asked, width]. */
    float[] features(int asked) {
        return ranks.parts().get(0).features(asked);
    }

    /** Copies keys and values into the cache or out of it, see {@link RankDecoder#copy}. */
    void copy(int text, int from, int tokens, float[][] all, int at, int room, boolean into) {
        ranks.parts().forEach(rank -> rank.copy(text, from, tokens, all, at, room, into));
    }

    /** Stops the ranks, and frees what they hold. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        if (isLed && !isFollower() && !pool.isOver()) {
            try {
                pool.runAll(context -> broadcast(context, new int[0]));
            } catch (RankFailedException e) {
                logger.debug("A process has ended before the generator", e);
            }
        }
        ranks.close();
        RankThread.giveBackMemory();
    }
}
