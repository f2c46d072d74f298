package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Parameter;

import io.djltp.gradient.GradientFlow;
import io.djltp.gradient.PartialAxes;
import io.djltp.torch.Autograd;
import io.djltp.torch.TensorView;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * A loss of a forward pass: a network may have several, such as one for each kind of labels.
 *
 * @param labels the labels
 * @param leaf the loss of the whole batch, to the coordinator
 * @param handle the same, which outlives the pass: it may be a term of what is differentiated when
 *     its manager was closed
 * @param parts the loss of each rank of this process, and what it counts for
 * @param ofHeads how many losses the fused heads had computed with it, see {@link
 *     RankOutput#countLosses()}
 * @param uses how it depends on the parameters, see {@link GradientFlow}
 */
@SuppressWarnings("try") // a scope is used by being open
record LossOfPass(
        InPlaceCheck labels,
        NDArray leaf,
        NDArray handle,
        List<Part> parts,
        List<Long> ofHeads,
        Map<Parameter, PartialAxes> uses) {

    /**
     * The loss of a rank.
     *
     * @param loss the loss, of the rank's rows or of all
     * @param share what it counts for in the loss of the batch
     */
    record Part(NDArray loss, double share) {}

    /**
     * Takes over the loss that the ranks have computed.
     *
     * @param trained whether a backward pass may come
     */
    static LossOfPass of(
            NDList labels, List<RankOutput> outputs, NDManager manager, boolean trained) {
        NDArray leaf = Autograd.detach(outputs.get(0).reported, manager);
        // else it is a number to whoever differentiates something, as it is to the ranks
        if (outputs.stream().anyMatch(output -> TensorView.of(output.loss).requiresGradient())) {
            leaf.setRequiresGradient(true);
        }
        Map<Parameter, PartialAxes> uses = new HashMap<>();
        outputs.forEach(output -> uses.putAll(output.uses)); // of rows that use others, too
        List<Part> parts =
                outputs.stream().map(output -> new Part(output.loss, output.share)).toList();
        List<Long> ofHeads = outputs.get(0).countLosses();
        NDArray handle = trained ? Autograd.handle(leaf) : leaf;
        return new LossOfPass(
                InPlaceCheck.begin("label", labels), leaf, handle, parts, ofHeads, uses);
    }

    /** Returns whether it is the loss of these very labels, which nobody has changed since. */
    boolean isOf(NDList others) {
        NDList own = labels.arrays();
        boolean same = own.size() == others.size();
        for (int i = 0; same && i < own.size(); i++) {
            same = own.get(i) == others.get(i);
        }
        return same && labels.changed() < 0;
    }

    /** Returns whether the caller's backward pass has reached it. */
    boolean isReached() {
        try (NDArray gradient = Autograd.gradient(handle)) {
            return gradient != null;
        }
    }

    /** Frees what outlives the manager of the pass: no backward pass will come. */
    void closeHandle() {
        if (handle != leaf) {
            handle.close();
        }
    }

    /** Returns whether a backward pass can still reach it. */
    boolean isReachable() {
        return handle != leaf && Autograd.isShared(handle);
    }

    /**
     * Checks that fused heads have what the loss is differentiated with.
     *
     * @throws IllegalArgumentException if another loss has been computed of one since
     */
    void checkHeads(RankOutput output) {
        if (!ofHeads.equals(output.countLosses())) {
            throw new IllegalArgumentException(
                    "What is differentiated has a loss of the fused head with the weight "
                            + output.getHeads().get(0).getShape()
                            + ", of which another loss has been computed since, and the head"
                            + " keeps what the gradient of its last loss is made of. Let each"
                            + " loss have a forward and a backward pass of its own, whose"
                            + " gradients add up until trainer.step(), or build the head with"
                            + " optFusedLoss(false)");
        }
    }

    /**
     * Returns what the backward pass multiplies a rank's loss with: what the coordinator's has
     * multiplied the whole with, times the rank's share. Computed on the device: to read it, the
     * host would wait for the forward pass.
     */
    private NDArray factor(Part part, NDManager scope) {
        try (NDArray above = Autograd.gradient(handle);
                Autograd.GradMode mode = Autograd.gradMode(false)) {
            if (part.share() == 1 && isLike(above, part.loss())) {
                return Autograd.detach(above, scope); // as what follows would leave it
            }
            NDArray exact = Autograd.detach(above, scope).toType(DataType.FLOAT64, false);
            // not in place: all ranks read the one gradient
            NDArray factor = exact.mul(part.share()).toType(part.loss().getDataType(), false);
            NDArray own = factor.toDevice(part.loss().getDevice(), false);
            own.attach(scope);
            return own;
        }
    }

    private static boolean isLike(NDArray above, NDArray loss) {
        return above.getDataType() == loss.getDataType()
                && above.getDevice().equals(loss.getDevice());
    }

    /**
     * Runs the backward pass of a rank. Several losses of one graph are differentiated as their
     * sum: it is used up by that.
     *
     * @param reached the losses that the coordinator's backward pass has reached
     * @param index the place of the rank among those of this process
     * @param scope the manager of what is made
     */
    static void backward(List<LossOfPass> reached, int index, NDManager scope) {
        NDArray sum = null;
        NDArray seed = null;
        try (Autograd.GradMode mode = Autograd.gradMode(true)) {
            for (LossOfPass loss : reached) {
                Part part = loss.parts.get(index);
                NDArray own = part.loss();
                NDArray factor = loss.factor(part, scope);
                if (reached.size() == 1) {
                    sum = own;
                    seed = factor;
                } else {
                    NDArray scaled = own.mul(factor);
                    sum = sum == null ? scaled : sum.add(scaled);
                    seed = sum.onesLike();
                }
            }
        }
        Autograd.backward(sum, seed.reshape(sum.getShape()));
    }
}
