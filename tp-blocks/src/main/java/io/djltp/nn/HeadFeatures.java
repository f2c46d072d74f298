package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;

import io.djltp.head.Margin;
import io.djltp.rank.DataRows;
import io.djltp.rank.ParallelContext;
import io.djltp.region.RegionMappings;
import io.djltp.torch.Autograd;
import io.djltp.torch.TensorView;
import io.djltp.update.UnitRows;

/** What becomes of the features on their way into a {@link ClassificationHead}. */
final class HeadFeatures {

    private HeadFeatures() {}

    /**
     * Puts the rows together where each rank has a replica of the head, or of its shard: every
     * replica computes the loss of all rows and updates alike, so that no gradient of the weight is
     * summed. In MIXED mode the ranks have no replicas, and gather as all layers do.
     *
     * @param context the rank
     * @param inputs the features, maybe this rank's rows
     * @param what what they are, for errors
     * @return the features of the whole batch, or in MIXED mode the input
     */
    static NDList ofAllRows(ParallelContext context, NDList inputs, String what) {
        NDArray input = inputs.singletonOrThrow();
        if (context.getMesh().isOverlaid()
                || context.getDataGroup().getSize() == 1
                || !context.getPass().regionOf(input).isRowsCut()) {
            return inputs;
        }
        NDArray rows = DataRows.gather(context, input, what);
        return new NDList(context.getPass().enterGathered(rows, false));
    }

    /**
     * Returns the features as an array of its own, which a loss can be differentiated by.
     *
     * @param context the rank
     * @param mappings the mappings of the head
     * @param input the features of the whole batch
     * @param gathered whether the ranks' gradients of them are summed elsewhere
     * @param training whether the loss will be differentiated
     * @return the same features
     */
    static NDArray forLoss(
            ParallelContext context,
            RegionMappings mappings,
            NDArray input,
            boolean gathered,
            boolean training) {
        if (!training && !context.getPass().isWatched()) {
            return Autograd.detach(input, input.getManager());
        }
        if (!TensorView.of(input).requiresGradient()) {
            NDArray leaf = Autograd.detach(input, input.getManager());
            leaf.setRequiresGradient(true); // for the loss to be differentiated at all
            return leaf.reshape(leaf.getShape());
        }
        return gathered || context.getTensorGroup().getSize() == 1
                ? input.reshape(input.getShape())
                : mappings.copyToRegion(input, true);
    }

    /**
     * Returns features of the length that a margin scales cosines with.
     *
     * @param input the features, [x1, ..., xn, features]
     * @param margin the margin
     * @return the features, of one length
     */
    static NDArray scaled(NDArray input, Margin margin) {
        NDManager manager = input.getManager();
        // an array: a number would not live until the backward pass
        NDArray scale = manager.create(margin.scale());
        NDArray factor = UnitRows.inverseLengths(input, manager).mul(scale);
        return input.mul(factor.expandDims(factor.getShape().dimension()));
    }
}
