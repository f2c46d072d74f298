package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region;
import io.djltp.layout.ShardedLayout;
import io.djltp.layout.TokenCut;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.DropoutMask;

import java.util.List;

/** Which elements of the whole array over all ranks a rank's are, for a mask of dropout. */
final class MaskPart {

    private MaskPart() {}

    /** Returns the elements, or {@code null} if it is not known which they are. */
    static DropoutMask.Part of(
            ParallelContext context, Region region, NDArray input, ShardedLayout layout) {
        ShardRange rows = rows(context.getPass(), region, context.getDataGroup().getRank());
        if (rows.length() == 0) {
            return null; // of a row that does not count
        }
        if (region.isTokensCut()) {
            return ofTokens(context, rows, input);
        }
        if (input.size() % rows.length() != 0) {
            return null; // axis 0 is not the batch
        }
        long rowSize = input.size() / rows.length(); // on this rank
        if (!region.isShard()) {
            return DropoutMask.Part.from(rows.start() * rowSize);
        }
        return layout == null ? null : ofSlice(context, rows.start() * rowSize, input, layout);
    }

    private static DropoutMask.Part ofSlice(
            ParallelContext context, long before, NDArray input, ShardedLayout layout) {
        Cut cut = layout.cut();
        int rank = context.getTensorGroup().getRank();
        long length = cut.getShardLength(rank);
        if (!endsWith(input.getShape(), length)) {
            throw new IllegalArgumentException(
                    "Dropout of "
                            + input.getShape()
                            + ", of this rank's "
                            + length
                            + " of "
                            + cut.getLength()
                            + " features: its mask can be that of the whole only where the features"
                            + " are the last axis, or the last axes, [.., heads, d]. Put the"
                            + " dropout before the reshape or the swapAxes that moves them, or"
                            + " behind that which takes them back");
        }
        long first = length == 0 ? 0 : before / length * cut.getLength();
        List<ShardRange> places =
                cut.getRanges(rank).stream().map(range -> range.movedBy(first)).toList();
        return new DropoutMask.Part(places, cut.getLength());
    }

    /**
     * Returns whether the last axes have so many elements together, such as heads of d features.
     */
    private static boolean endsWith(Shape shape, long length) {
        long size = 1;
        for (int axis = shape.dimension() - 1; axis > 0; axis--) {
            size *= shape.get(axis);
            if (size == length) {
                return true;
            }
        }
        return length == 0 || shape.dimension() == 1 && shape.get(0) == length;
    }

    /** A rank's tokens lie together, for each index of the axes before theirs. */
    private static DropoutMask.Part ofTokens(
            ParallelContext context, ShardRange rows, NDArray input) {
        TokenCut tokens = context.getPass().getTokenRegion().cutOf(input);
        int rank = context.getTensorGroup().getRank();
        Shape shape = input.getShape();
        if (!tokens.fits(shape, rank)) {
            return null;
        }
        long token = shape.slice(tokens.axis() + 1).size(); // elements
        long own = shape.get(tokens.axis());
        long whole = input.size() / own * tokens.cut().getLength(); // of this rank's rows
        if (whole % rows.length() != 0) {
            return null;
        }
        long before = whole / rows.length() * rows.start();
        ShardRange range = tokens.cut().getRange(rank);
        ShardRange place = new ShardRange(before + range.start() * token, range.length() * token);
        return new DropoutMask.Part(List.of(place), tokens.cut().getLength() * token);
    }

    /** Returns the rows of the batch that a rank has; of those that are not cut, one of all. */
    private static ShardRange rows(ForwardPass pass, Region region, int rank) {
        return region.isRowsCut() ? pass.getBatchCut().getRange(rank) : new ShardRange(0, 1);
    }
}
