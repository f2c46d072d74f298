package io.djltp.internal.layout;

import ai.djl.ndarray.types.Shape;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.util.regex.Pattern;

/** What an operation throws that cannot be computed on the parts that ranks have. */
final class PlacementErrors {

    private static final Pattern SHAPES =
            Pattern.compile(
                    "size|shape|dimension|broadcast|match|element|channel|length",
                    Pattern.CASE_INSENSITIVE);

    private PlacementErrors() {}

    /** Returns the error of an array of the engine that is the first operand. */
    static IllegalStateException foreignOperand(Placement placement, Shape shape) {
        return new IllegalStateException(
                "An operation of an array that is not of this forward pass gets the array "
                        + placement.whole(shape)
                        + " of the pass. Let the array of the pass be the first operand, x.mul(w)"
                        + " instead of w.mul(x); make constants by x.getManager(); and ask for"
                        + " parameters by parameterStore.getValue(parameter, device, training),"
                        + " not by parameter.getArray(). A penalty on weights is the optimizer's:"
                        + " optWeightDecays(...)");
    }

    static IllegalArgumentException changesBatch(String name, Shape shape) {
        return Errors.argument(
                "%s would change an array of the batch in place, %s on this rank. The ranks"
                        + " share the caller's array, and would compute with what others have"
                        + " made of it. Compute a new array, x.mul(2) instead of x.muli(2), or"
                        + " change a copy, x.duplicate()",
                name, shape);
    }

    static IllegalArgumentException mixesRows(String name, Shape shape) {
        return Errors.argument(
                "The batch is cut over the ranks, and %s of %s along its rows, such as axis 0,"
                        + " would be that of this rank's rows only. Let the loss compute it,"
                        + " which gets the rows of all ranks, or use TENSOR mode for this network",
                name, shape);
    }

    static IllegalArgumentException oneValue(long rows, int ranks) {
        return Errors.argument(
                "A batch normalization cannot train on one value of a channel: the batch has"
                        + " %s%s%s. Leave an incomplete last batch out, setSampling(rows,"
                        + " shuffle, true), or choose a batch size that leaves two rows for each"
                        + " rank%s",
                rows,
                rows == 1 ? " row" : " rows",
                ranks == 1 ? "" : ", and each of " + ranks + " ranks normalizes its own",
                rows < 2
                        ? ""
                        : "; or use io.djltp.nn.SyncBatchNorm (in a plan,"
                                + " Style.batchNorm()), which takes the statistics of the"
                                + " whole batch, or TENSOR mode");
    }

    static IllegalArgumentException read(String name, Placement placement, Shape shape) {
        return Errors.argument(
                "%s, and %s would read this rank's part only. %s",
                describe(placement, shape), name, remedy(placement));
    }

    static IllegalArgumentException mixes(String name, Placement placement, Shape shape) {
        if (placement.isHead()) {
            return Errors.argument(
                    "%s is never computed, for its loss is fused, and %s uses it. Let it be the"
                            + " output of the network, as it is, and"
                            + " VocabParallelCrossEntropyLoss its loss, or build the head with"
                            + " optFusedLoss(false)",
                    placement.layer(), name);
        }
        return Errors.argument(
                "%s, and %s does not commute with that: each rank would compute it of its part."
                        + " %s",
                describe(placement, shape), name, remedy(placement));
    }

    private static String remedy(Placement placement) {
        return placement.region().isTokensCut()
                ? "Let ColumnParallelLinear with optSequenceParallel(true) gather the tokens before"
                        + " it, or a SequenceGather"
                : "Build the layer with optGatherOutput(true), or let elementwise operations and a"
                        + " RowParallelLinear follow it";
    }

    static IllegalArgumentException moved(Placement placement, Shape shape) {
        return new IllegalArgumentException(
                describe(placement, shape)
                        + ". A layer, a loss or the end of the network takes what was computed of"
                        + " it, where the features are no longer the last axis, in their order: a"
                        + " reshape, a swapAxes or a transpose has moved them. Take them back"
                        + " before, or build the layer with optGatherOutput(true)");
    }

    static IllegalArgumentException otherCuts(Placement placement, Placement other) {
        return Errors.argument(
                "%s is cut over the ranks as %s, and is put together with features, or taken by"
                        + " a layer, that are cut as %s: give both the same cut, by"
                        + " optShardingStrategy, or build the layer with optGatherOutput(true)",
                placement.layer(), placement.cut(), other.cut());
    }

    static IllegalArgumentException mixed(
            String name, Placement one, Shape shape, Placement other, Shape otherShape) {
        String both =
                "The operands of %s, %s and %s, have different placements: "
                        .formatted(name, one.whole(shape), other.whole(otherShape));
        if (one.region().rows() != other.region().rows()) {
            return new IllegalArgumentException(
                    both
                            + "of one of them a rank has its rows of the batch only. What branches"
                            + " off before a layer with optBatchShardedInput(true) can be joined"
                            + " only before it, or after a RowParallelLinear with"
                            + " optBatchShardedOutput(true); TENSOR mode has no such limit");
        }
        if (one.region().tokens() != other.region().tokens() || one.tokens() != other.tokens()) {
            return new IllegalArgumentException(
                    both
                            + "of one of them a rank has its tokens only, of the other all, or"
                            + " other ones. Join both before the SequenceScatter, or both between"
                            + " it and the SequenceGather (a RowParallelLinear leaves a rank's"
                            + " tokens with optSequenceParallel(true)), or both behind it");
        }
        Placement shard = one.region().isShard() ? one : other;
        return Errors.argument(
                "%s%s is sharded by its features, and of the other a rank has the whole. Build"
                        + " that layer with optGatherOutput(true), or join the two behind its"
                        + " RowParallelLinear",
                both, shard.layer());
    }

    static IllegalArgumentException rowOrder(Placement placement, Shape shape) {
        return Errors.argument(
                "The batch is cut over the ranks, and %s, of which %s is made on this rank, puts"
                        + " rows in another order along their axis: what the ranks have of it,"
                        + " one behind the other, is not that of the whole batch. Let what"
                        + " becomes of a row lie together: not x.concat(y, 0), but x.stack(y, 1)"
                        + " and then reshape(-1, ..), with labels in that order, or an output for"
                        + " each; or use TENSOR mode",
                placement.reordered() == null
                        ? "a swapAxes, a transpose or a reshape"
                        : placement.reordered(),
                shape);
    }

    /**
     * Adds to an exception of DJL or libtorch, which know of shapes only, which part of the batch
     * or of the tokens a rank has.
     *
     * @param e the exception
     * @param tokens this rank's tokens, or {@code null}
     * @param rows the rows of this rank and of all, or {@code null}
     * @return an exception with the cause and the remedy, or the same if it is not about shapes
     */
    static RuntimeException explained(
            RuntimeException e, @Nullable String tokens, long @Nullable [] rows) {
        if (String.valueOf(e.getMessage()).contains("has been released already")) {
            return new IllegalArgumentException(
                    "A block or a loss uses an array that is closed. A parallel trainer replaces"
                            + " the model's arrays of parameters that are cut: ask the parameter"
                            + " store, parameterStore.getValue(parameter, device, training). A"
                            + " penalty on weights is the optimizer's: optWeightDecays(...)",
                    e);
        }
        StackTraceElement[] trace = e.getStackTrace();
        boolean ofShapes =
                trace.length > 0
                        && trace[0].getClassName().startsWith("ai.djl.")
                        && SHAPES.matcher(String.valueOf(e.getMessage())).find();
        if (!ofShapes || tokens == null && rows == null) {
            return e;
        }
        StringBuilder text = new StringBuilder(String.valueOf(e.getMessage()));
        if (tokens != null) {
            text.append(". In the sequence-parallel region each rank has its tokens only (here ")
                    .append(tokens)
                    .append("): what needs all of them, or is joined with an array that has all,")
                    .append(" comes before the SequenceScatter or behind a SequenceGather");
        }
        if (rows != null) {
            text.append(". This rank has ")
                    .append(rows[0])
                    .append(" of the ")
                    .append(rows[1])
                    .append(
                            " rows of the batch before a layer with optBatchShardedInput(true), and")
                    .append(
                            " all of them after it: what branches off before it can be joined after")
                    .append(" it only behind a RowParallelLinear with optBatchShardedOutput(true)");
        }
        return new IllegalArgumentException(text.toString(), e);
    }

    private static String describe(Placement placement, Shape shape) {
        TokenCut tokens = placement.tokens();
        if (tokens != null && placement.region().isTokensCut()) {
            return ("In a sequence-parallel region each rank has its tokens only, here"
                            + " %s of %s tokens")
                    .formatted(shape, tokens.cut().getLength());
        }
        return "%s is sharded over the ranks by its features, here %s of %s"
                .formatted(placement.layer(), shape, placement.whole(shape));
    }
}
