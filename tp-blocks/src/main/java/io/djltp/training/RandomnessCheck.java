package io.djltp.training;

import io.djltp.internal.torch.RandomDraws;
import io.djltp.rank.ParallelConfig;

import java.util.function.Supplier;

/**
 * Refuses a network that draws random numbers where all ranks compute the same: the ranks draw from
 * one generator in any order, so that their activations, and with them the replicas of the
 * parameters, would differ.
 *
 * <p>{@link RandomDraws} lets the draw itself fail: only execution knows where it is computed.
 *
 * <p>A loss may draw in no mode: ranks compute it of their own rows only if it is one that never
 * draws, and else alike.
 */
final class RandomnessCheck {

    private static final String REASON =
            "Where all ranks compute alike they need the same mask or random numbers on all of"
                    + " them, but libtorch's generator, from which DJL draws, is one for the"
                    + " process. ";

    private static final String SWITCH =
            " ParallelConfig.builder().optRandomCheck(false) switches this check off.";

    private static final String REMEDY =
            " Use io.djltp.nn.ParallelDropout, or a rate of 0, or move it into the data-parallel"
                    + " body (DATA mode, or MIXED mode before the layer with"
                    + " optBatchShardedInput(true))."
                    + SWITCH;

    private final ParallelConfig config;

    RandomnessCheck(ParallelConfig config) {
        this.config = config;
    }

    /**
     * Returns what to throw for an exception of a rank's forward pass.
     *
     * @param thrown the exception
     * @return the exception, or one that says who drew where and what to do
     */
    RuntimeException explained(RuntimeException thrown) {
        if (!RandomDraws.isRefusal(thrown)) {
            return thrown;
        }
        return new UnsupportedOperationException(
                "The network draws random numbers, as Dropout does, in "
                        + place(thrown)
                        + ". "
                        + REASON.trim()
                        + REMEDY,
                thrown);
    }

    /**
     * Computes a loss or an evaluator.
     *
     * @param name what it is, for the error
     * @param function what computes it
     * @param <T> the type of the result
     * @return the result
     * @throws UnsupportedOperationException if it draws random numbers, and there are other ranks
     */
    <T> T withoutDraws(String name, Supplier<T> function) {
        if (!config.isRandomCheck() || config.getMesh().getRanks() == 1) {
            return function.get();
        }
        boolean before = RandomDraws.isRefused(); // in a forward pass
        RandomDraws.setRefused(true);
        try {
            return function.get();
        } catch (RuntimeException e) {
            if (!RandomDraws.isRefusal(e)) {
                throw e;
            }
            throw new UnsupportedOperationException(
                    name
                            + " draws random numbers, in "
                            + place(e)
                            + ". "
                            + REASON
                            + "Draw them where the batch is made, and give them to it as one more"
                            + " array of the labels."
                            + SWITCH,
                    e);
        } finally {
            RandomDraws.setRefused(before);
        }
    }

    /** Names the line that draws, and the first one outside of DJL that has led there. */
    private static String place(Throwable thrown) {
        Throwable cause = thrown;
        while (cause.getCause() != null) {
            cause = cause.getCause();
        }
        StackTraceElement drawing = null;
        for (StackTraceElement frame : cause.getStackTrace()) {
            String name = frame.getClassName();
            if (name.equals(ParallelForward.class.getName())) {
                break;
            }
            boolean engine =
                    name.startsWith("ai.djl.pytorch.")
                            || name.startsWith("ai.djl.nda")
                            || name.startsWith("io.djltp.layout.")
                            || name.startsWith("java.")
                            || name.startsWith("jdk.");
            if (drawing == null && !engine) {
                drawing = frame;
            }
            if (drawing != null && !name.startsWith("ai.djl.")) {
                return drawing == frame ? "" + frame : drawing + ", called by " + frame;
            }
        }
        return "" + (drawing == null ? cause.getStackTrace()[0] : drawing);
    }
}
