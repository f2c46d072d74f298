package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.util.Preconditions;

import io.djltp.cut.Cut;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region;
import io.djltp.layout.ShardedLayout;
import io.djltp.rank.ParallelContext;
import io.djltp.region.RegionMappings;
import io.djltp.sharding.ShardingStrategy;

import java.util.stream.Collectors;

/**
 * What a column- or row-parallel layer can take as its input on a rank, and how it becomes whole
 * over the batch.
 */
final class LayerInput {

    private final AbstractParallelLinear layer;

    LayerInput(AbstractParallelLinear layer) {
        this.layer = layer;
    }

    private String describe() {
        return layer.getClass().getSimpleName() + " with a weight of " + layer.weight().getShape();
    }

    /** Checks that a strategy cuts the axis that a layer does. */
    static void checkStrategy(ShardingStrategy strategy, Shape weight, int axis, String layer) {
        Preconditions.checkArgument(
                !strategy.isReplicated() && strategy.axis(weight) == axis,
                layer
                        + " cuts axis "
                        + axis
                        + " of its weight, the "
                        + (axis == 0 ? "output" : "input")
                        + " features, and cannot take the strategy "
                        + strategy
                        + ": give optShardingStrategy one that cuts that axis");
    }

    /** Returns the one input that the layer takes, which holds features. */
    NDArray of(NDList inputs) {
        if (inputs.size() != 1 || !inputs.head().getDataType().isFloating()) {
            String given =
                    inputs.stream()
                            .map(input -> input.getDataType() + " " + input.getShape())
                            .collect(Collectors.joining(", ", "[", "]"));
            throw new IllegalArgumentException(
                    describe()
                            + " takes one input, of floating point features, and gets "
                            + given
                            + ": leave out what is too much, and convert integers"
                            + " (toType(DataType.FLOAT32, false)), or look them up in an"
                            + " embedding before this layer");
        }
        return inputs.head();
    }

    /** Checks the length of the last axis. */
    void checkLength(NDArray input, long features) {
        Shape shape = input.getShape();
        if (shape.dimension() == 0 || shape.get(shape.dimension() - 1) != features) {
            throw new IllegalArgumentException(
                    describe()
                            + " over all ranks needs an input whose last axis has length "
                            + features
                            + " on this rank, but the input is "
                            + shape
                            + (layer.takesSlice()
                                    ? ". It takes the slice of the features that a"
                                            + " ColumnParallelLinear leaves on each rank: what"
                                            + " comes between has to keep the slice, or heads that"
                                            + " the ranks divide. Else build the first with"
                                            + " optGatherOutput(true), and this layer with"
                                            + " optInputIsParallel(false)"
                                    : ""));
        }
    }

    /**
     * Checks that an input is the slice that the rank's part of the weight is for.
     *
     * @param cut how the input features of the weight are cut, or {@code null} if the layer does
     *     not take a slice
     */
    void checkCut(ParallelContext context, NDArray input, Cut cut) {
        if (cut == null) {
            checkLength(input, layer.weight().getShape().get(1));
            return;
        }
        int rank = context.getTensorGroup().getRank();
        NDArray own = context.getPass().takeLast(input);
        context.getPass().checkSharded(input, cut, describe());
        checkLength(own, cut.getShardLength(rank));
    }

    /** Refuses the output of a fused head, on one rank too: it has the features in it. */
    void checkComputed(ForwardPass pass, NDArray input) {
        ShardedLayout layout = pass.layoutOf(input);
        if (layout != null && layout.head() != null) {
            throw new IllegalArgumentException(
                    describe()
                            + " follows a layer with the weight "
                            + layout.head().getShape()
                            + ", a fused head whose logits are never computed: build that"
                            + " one with optFusedLoss(false)");
        }
    }

    /** Gathers the rows of all ranks; what the other ranks' rows get backward is scattered. */
    NDArray gatherBatch(ParallelContext context, NDArray input, NDArray weight, boolean fused) {
        ForwardPass pass = context.getPass();
        RegionMappings mappings = context.getMappings(layer);
        checkRows(pass, input.getShape());
        NDArray own = pass.enterRows(input);
        // a rank without a row has computed another one's, which does not count
        NDArray rows = pass.countedRows(own);
        // a product that overlaps reduces the gradient itself
        boolean overlaps = !fused && mappings.canOverlap(rows, weight);
        boolean partial = layer.hasPartialInputGradient() && !overlaps;
        NDArray whole = mappings.gatherFromSequenceRegion(rows, pass.getBatchCut(), partial);
        return pass.enterGathered(whole);
    }

    /** Checks that axis 0 is the rows of this rank, of which one without any computes another's. */
    private void checkRows(ForwardPass pass, Shape shape) {
        long rows = Math.max(1, pass.getRows());
        if (shape.get(0) != rows) {
            throw new IllegalArgumentException(
                    describe()
                            + " gathers the batch over the ranks, and its input must have the rows"
                            + " of the batch as axis 0: this rank has "
                            + rows
                            + " of "
                            + pass.getGlobalRows()
                            + ", and the input is "
                            + shape
                            + ". Keep [rows, tokens, features] up to this layer, without a reshape"
                            + " that makes rows of the tokens, and let the batch be axis 0 of the"
                            + " inputs; or use TENSOR mode, or a mesh, where nothing is gathered");
        }
    }

    /**
     * Returns whether the batch has to be gathered, and refuses an input that the layer is not for.
     */
    boolean checkRegion(ForwardPass pass, NDArray input) {
        checkComputed(pass, input);
        if (pass.isShared(input)) {
            return false;
        }
        Region region = pass.regionOf(input);
        if (region.isShard() && !layer.takesSlice()) {
            throw new IllegalArgumentException(
                    describe()
                            + " needs an input that is whole, and gets a slice of the features, "
                            + input.getShape()
                            + ": build the layer before it with optGatherOutput(true), or let a"
                            + " RowParallelLinear take the slice");
        }
        if (region.isTokensCut() && !layer.takesTokens()) {
            throw new IllegalArgumentException(
                    describe()
                            + " gets this rank's tokens, "
                            + input.getShape()
                            + ", of a sequence-parallel region, and needs all of them: build a"
                            + " ColumnParallelLinear with optSequenceParallel(true), or put a"
                            + " SequenceGather before the layer");
        }
        if (!region.isRowsCut() || !pass.isOverlaid()) {
            return false; // another layer has gathered the batch, or it may stay cut
        }
        if (!layer.isBatchShardedInput()) {
            throw new IllegalStateException(
                    layer.getClass().getSimpleName()
                            + " gets the part "
                            + input.getShape()
                            + " of a batch of "
                            + pass.getGlobalRows()
                            + " in MIXED mode, but is cut over the ranks: build the first"
                            + " tensor-parallel layer with optBatchShardedInput(true), in a plan"
                            + " Style.column().batchShardedInput(), and join"
                            + " what branches off before that layer before it; or use TENSOR mode,"
                            + " or a mesh with an axis for each");
        }
        return true;
    }
}
