package io.djltp.checkpoint;

import io.djltp.collective.GatheredNumbers;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool.RankTask;
import io.djltp.training.TrainerState;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.List;

/** What all processes do, or none goes on with: if one fails, the others say so too. */
final class Agreement {

    private final TrainerState state;

    Agreement(TrainerState state) {
        this.state = state;
    }

    /** A part of it. */
    @FunctionalInterface
    interface Task {
        void run() throws IOException;
    }

    /** A part of it that a rank does. */
    @FunctionalInterface
    interface PartOfRank {
        void run(ParallelContext context) throws IOException;
    }

    /**
     * Does something in all processes.
     *
     * @param what what it is, a verb
     * @param task what is done
     */
    void run(String what, Task task) {
        RuntimeException failure = null;
        try {
            task.run();
        } catch (IOException e) {
            failure = new UncheckedIOException(e.getMessage(), e);
        } catch (RuntimeException e) {
            failure = e;
        }
        long[] own = {failure == null ? 0 : 1};
        long[] all = state.getRanks().run(context -> gather(context, own)).get(0);
        if (failure != null) {
            throw failure;
        }
        for (int rank = 0; rank < all.length; rank++) {
            if (all[rank] != 0) {
                throw new IllegalStateException(
                        "Rank "
                                + rank
                                + " could not "
                                + what
                                + " the checkpoint, and says why in its process");
            }
        }
    }

    private long[] gather(ParallelContext context, long... own) {
        return GatheredNumbers.of(
                context.getWorld(),
                state.getParameters().getStore(context).getManager(),
                own,
                "the restoring of a checkpoint");
    }

    /**
     * Does something on all ranks of this process. What fails does not end the job.
     *
     * @param part what each rank does, without collective operations
     */
    void runOnRanks(PartOfRank part) throws IOException {
        RankTask<Exception> task =
                context -> {
                    try {
                        part.run(context);
                        return null;
                    } catch (IOException | RuntimeException e) {
                        return e;
                    }
                };
        List<Exception> failures = state.getRanks().run(task);
        for (Exception failure : failures) {
            if (failure instanceof IOException io) {
                throw io;
            } else if (failure != null) {
                throw (RuntimeException) failure;
            }
        }
    }
}
