package io.djltp.training;

import ai.djl.nn.Block;

import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.torch.RandomDraws;

import java.util.List;
import java.util.function.Supplier;
import java.util.stream.Collectors;

/**
 * Refuses a network that draws random numbers where all ranks compute the same: the ranks draw from
 * one generator in any order, so that their activations, and with them the replicas of the
 * parameters, would differ.
 *
 * <p>In TENSOR mode, and on a mesh with an axis tensor, that is everywhere, and what the block tree
 * shows is refused before anything is initialized. What it does not show, a draw in a function or
 * in a block of one's own, is found by execution, as is everything in MIXED mode, where only
 * execution knows what comes after the gather: there {@link RandomDraws} lets the draw itself fail.
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

    private final Block block;
    private final ParallelConfig config;

    RandomnessCheck(Block block, ParallelConfig config) {
        this.block = block;
        this.config = config;
    }

    /**
     * Checks the block tree.
     *
     * @throws UnsupportedOperationException if a block will draw where all ranks compute the same
     */
    void check() {
        if (!config.isRandomCheck()
                || config.getMesh().isOverlaid()
                || !config.getMesh().isCut(DeviceMesh.TENSOR)) {
            return;
        }
        List<DropoutSearch.Found> certain =
                new DropoutSearch(block)
                        .getFound().stream().filter(DropoutSearch.Found::certain).toList();
        if (!certain.isEmpty()) {
            throw new UnsupportedOperationException(
                    "The network has DJL's own dropout, in "
                            + config.describe()
                            + ": "
                            + texts(certain)
                            + ". "
                            + REASON
                            + REMEDY.trim());
        }
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
        List<DropoutSearch.Found> found = new DropoutSearch(block).getFound();
        String suspects =
                found.isEmpty() ? "" : " Dropout that the network has: " + texts(found) + ".";
        return new UnsupportedOperationException(
                "The network draws random numbers, as Dropout does, in "
                        + place(thrown)
                        + ". "
                        + REASON.trim()
                        + suspects
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

    private static String texts(List<DropoutSearch.Found> found) {
        return found.stream().map(DropoutSearch.Found::toString).collect(Collectors.joining(", "));
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
            boolean engine = name.startsWith("ai.djl.pytorch.") || name.startsWith("ai.djl.nda");
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
