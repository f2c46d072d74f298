package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.ShardedLayout;
import io.djltp.rank.ParallelContext;
import io.djltp.sharding.AxisPart;
import io.djltp.sharding.ShardingStrategy;

import java.util.List;

/**
 * The output of a {@link ColumnParallelLinear} whose weight stacks several projections of one
 * input, such as [q; k; v] or [gate; up]: one product, and one all-reduce of the input's gradient,
 * instead of one for each.
 *
 * <p>A rank's slice is its share of each part, one after another. It is divided where the rank's
 * share of each ends; the parts are slices again, each with the cut of its own.
 */
public final class StackedOutput {

    private final List<AxisPart> parts;

    /**
     * Creates the description of an output.
     *
     * @param parts the projections, in the order in which they are stacked
     */
    public StackedOutput(AxisPart... parts) {
        this.parts = List.of(parts);
    }

    /**
     * Returns how the rows of the weight are cut.
     *
     * @return the strategy of the layer
     */
    public ShardingStrategy getShardingStrategy() {
        return ShardingStrategy.segmented(0, parts.toArray(new AxisPart[0]));
    }

    /**
     * Returns the number of output features.
     *
     * @return the units of the layer
     */
    public long getUnits() {
        return parts.stream().mapToLong(AxisPart::getLength).sum();
    }

    /**
     * Returns how a part is cut.
     *
     * @param part the number of the part
     * @param ranks the number of ranks
     * @return which features of the part each rank has
     */
    public Cut getCut(int part, int ranks) {
        return parts.get(part).cut(ranks);
    }

    /**
     * Divides the output.
     *
     * @param context the rank, or {@code null} under an ordinary parameter store
     * @param output the output of the layer: [.., units], or this rank's slice [.., units/p]
     * @param block the block that does it, for errors
     * @return the parts, views that must not be changed in place
     * @throws IllegalArgumentException if the output is not such a slice
     */
    public NDList divide(ParallelContext context, NDArray output, String block) {
        if (context == null || context.getTensorGroup().getSize() == 1) {
            return split(output, parts.stream().mapToLong(AxisPart::getLength).toArray());
        }
        int ranks = context.getTensorGroup().getSize();
        int rank = context.getTensorGroup().getRank();
        ForwardPass pass = context.getPass();
        Cut whole = getShardingStrategy().cut(new Shape(getUnits()), ranks);
        List<Cut> cuts = parts.stream().map(part -> part.cut(ranks)).toList();
        NDList divided =
                split(
                        pass.takeSlice(output, whole, rank, block),
                        cuts.stream().mapToLong(cut -> cut.getShardLength(rank)).toArray());
        NDList slices = new NDList(parts.size());
        for (int i = 0; i < cuts.size(); i++) {
            NDArray part = divided.get(i);
            ShardedLayout layout = new ShardedLayout(cuts.get(i));
            slices.add(pass.enterSlice(part, layout, block));
        }
        return slices;
    }

    private static NDList split(NDArray output, long[] lengths) {
        long[] places = new long[lengths.length - 1]; // where all but the first part begin
        long place = 0;
        for (int i = 0; i < places.length; i++) {
            place += lengths[i];
            places[i] = place;
        }
        return output.split(places, output.getShape().dimension() - 1);
    }
}
