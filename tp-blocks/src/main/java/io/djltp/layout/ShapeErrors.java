package io.djltp.layout;

import ai.djl.ndarray.types.Shape;

import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/**
 * What a block or a loss throws that has not expected a slice: DJL and libtorch know of shapes
 * only, and say nothing of ranks.
 */
final class ShapeErrors {

    private static final Pattern SHAPES =
            Pattern.compile(
                    "size|shape|dimension|broadcast|match|element|channel|length",
                    Pattern.CASE_INSENSITIVE);

    private final List<String> cutLayers = new ArrayList<>();
    private String cutTokens; // the last place, or null

    /** Notes a layer whose output is cut over the ranks, here a slice of a longer axis. */
    void addLayer(String layer, Shape slice, long length) {
        cutLayers.add(layer + " (here " + slice + " of " + length + ")");
    }

    /** Notes where the tokens are cut over the ranks, here a rank's part. */
    void addTokens(Shape part, TokenCut cut) {
        cutTokens = part + " of " + cut.cut().getLength();
    }

    /**
     * Adds to an exception where the slices come from.
     *
     * @param e the exception
     * @param rows the rows of this rank, and those of all, or {@code null} if no layer has gathered
     *     them
     * @param slices whether there can be any
     * @return an exception with the cause and the remedy, or the same if it is not about slices
     */
    RuntimeException explain(RuntimeException e, long[] rows, boolean slices) {
        if (String.valueOf(e.getMessage()).contains("has been released already")) {
            return new IllegalArgumentException(
                    "A block or a loss uses an array that is closed. A parallel trainer replaces"
                            + " the model's arrays of parameters that are cut: ask the parameter"
                            + " store, parameterStore.getValue(parameter, device, training). A"
                            + " penalty on weights is the optimizer's: optWeightDecays(...)",
                    e);
        }
        if (!slices
                || !isAboutShapes(e)
                || cutLayers.isEmpty() && cutTokens == null && rows == null) {
            return e;
        }
        StringBuilder text = new StringBuilder(String.valueOf(e.getMessage()));
        if (!cutLayers.isEmpty()) {
            text.append(
                    ". Is it so with one rank too? If not: the outputs of these layers are cut"
                            + " over");
            text.append(" the ranks, and each rank has a");
            text.append(" slice of the last axis: ").append(String.join(", ", cutLayers));
            text.append(
                    ". A block or a loss that needs the whole of it, or a number of heads that");
            text.append(" the ranks do not divide, cannot take a slice: build the layer with");
            text.append(" optGatherOutput(true), or let elementwise operations and a");
            text.append(" RowParallelLinear follow");
        }
        if (cutTokens != null) {
            text.append(". In the sequence-parallel region each rank has its tokens only (here ");
            text.append(cutTokens).append("): what needs all of them, or is joined with an array");
            text.append(" that has all, comes before the SequenceScatter or behind a");
            text.append(" SequenceGather");
        }
        if (rows != null) {
            text.append(". This rank has ").append(rows[0]).append(" of the ").append(rows[1]);
            text.append(" rows of the batch before a layer with optBatchShardedInput(true), and");
            text.append(
                    " all of them after it: what branches off before it can be joined after it");
            text.append(" only behind a RowParallelLinear with optBatchShardedOutput(true)");
        }
        return new IllegalArgumentException(text.toString(), e);
    }

    /** Only DJL and libtorch do not know of ranks; what a block or a loss throws is its own. */
    private static boolean isAboutShapes(RuntimeException e) {
        StackTraceElement[] trace = e.getStackTrace();
        return trace.length > 0
                && trace[0].getClassName().startsWith("ai.djl.")
                && SHAPES.matcher(String.valueOf(e.getMessage())).find();
    }
}
