package io.djltp.nn.djl;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Block;

import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region;
import io.djltp.layout.Region.Features;
import io.djltp.rank.ParallelContext;

/** The stretch of a rank's pass in which it has some of the heads of an attention. */
final class HeadRegion {

    private final Block block;
    private final ParallelContext context;
    private NDArray last;
    private NDArray entered;

    HeadRegion(Block block, ParallelContext context) {
        this.block = block;
        this.context = context;
    }

    /**
     * Takes an input to where each rank has some heads: its gradient is the sum of the ranks'. An
     * array that is entered several times has one such sum.
     *
     * @param input the input, the same on all ranks of the tensor group
     * @return the input in the region
     */
    NDArray enter(NDArray input) {
        if (input != last) {
            check(input);
            last = input;
            entered = context.getMappings(block).copyToRegion(input);
            context.getPass().leave(entered, Features.SHARD, Features.REPLICATED);
        }
        return entered;
    }

    private void check(NDArray input) {
        ForwardPass pass = context.getPass();
        Region region = pass.regionOf(input);
        if (region.isShard()) {
            throw new IllegalArgumentException(
                    "An attention whose heads are cut over the ranks needs an input that is whole,"
                            + " and gets a slice of the features, "
                            + input.getShape()
                            + ": build the layer before it with optGatherOutput(true)");
        }
        if (region.isTokensCut()) {
            throw new IllegalArgumentException(
                    "An attention of DJL's blocks needs all tokens, and gets a rank's part of"
                            + " them, "
                            + input.getShape()
                            + ": put a SequenceGather before it, or take a"
                            + " ParallelTransformerEncoderLayer with optSequenceParallel(true)");
        }
        if (region.isRowsCut() && pass.isOverlaid()) {
            throw new IllegalStateException(
                    "An attention whose heads are cut over the ranks gets the part "
                            + input.getShape()
                            + " of a batch of "
                            + pass.getGlobalRows()
                            + " in MIXED mode, where ranks cannot share out both: use TENSOR mode,"
                            + " or a mesh with an axis for each");
        }
    }
}
