package io.djltp.layout;

import ai.djl.ndarray.NDArray;

import io.djltp.cut.Cut;
import io.djltp.layout.Region.Features;
import io.djltp.layout.RegionScopes.Place;
import io.djltp.torch.Autograd;

/** Takes arrays into regions of slices, and slices from there into blocks that divide them. */
final class SliceRegions {

    private final RegionScopes scopes;
    private final ArrayRegions regions;
    private final PassTrace trace;
    private final ShapeErrors errors;

    SliceRegions(RegionScopes scopes, ArrayRegions regions, PassTrace trace, ShapeErrors errors) {
        this.scopes = scopes;
        this.regions = regions;
        this.trace = trace;
        this.errors = errors;
    }

    /** Takes an array into a region of slices, see {@link ForwardPass#enterSlice}. */
    NDArray enter(
            NDArray array, ShardedLayout layout, Features below, String layer, boolean watched) {
        NDArray slice = watched ? Autograd.tracked(array) : array;
        Region region = new Region(regions.rowsOf(array), Features.SHARD);
        Place place = new Place(region, layout);
        trace.boundary(slice, region, region.with(below));
        trace.slice(slice, layout.head(), "The output of " + layer);
        trace.cut(slice, layout.cut());
        if (layout.head() != null) {
            trace.addHead(layout.head());
        } else {
            scopes.attach(slice, place);
        }
        scopes.note(slice, place);
        errors.addLayer(layer, slice.getShape(), layout.cut().getLength());
        return slice;
    }

    /** Takes a slice into a block, see {@link ForwardPass#takeSlice}. */
    NDArray take(NDArray slice, Cut cut, int rank, String block) {
        Region region = regions.of(slice);
        ShardedLayout layout = regions.layoutOf(slice);
        long[] shape = slice.getShape().getShape();
        if (!region.isShard()
                || layout != null && !layout.cut().equals(cut)
                || shape[shape.length - 1] != cut.getShardLength(rank)) {
            throw new IllegalArgumentException(
                    block
                            + " needs a slice of the features that is cut over the ranks as "
                            + cut
                            + ", and gets "
                            + slice.getShape()
                            + (layout != null
                                    ? ", cut as " + layout.cut()
                                    : region.isShard() ? ", a slice" : ", which is whole")
                            + ": let a layer with that cut come before it");
        }
        NDArray taken = slice.reshape(slice.getShape()); // a view, with a node of its own
        trace.boundary(taken, region, region);
        trace.cut(taken, cut);
        scopes.attach(taken, new Place(region, null));
        return taken;
    }
}
