package io.djltp.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Parameter;

import io.djltp.cut.Cut;
import io.djltp.torch.Autograd;
import io.djltp.torch.AutogradGraph;
import io.djltp.torch.GraphStructure;
import io.djltp.torch.TensorView;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * What a forward pass leaves behind for its analysis: at which nodes of the autograd graph the
 * region changes, which are slices, and which parameters were asked for.
 */
public final class PassTrace {

    private final Map<Long, Boundary> boundaries = new HashMap<>();
    private final Map<Long, Slice> slices = new HashMap<>();
    private final Map<Long, Cut> cuts = new HashMap<>(); // of slices, and of what is made of them
    private final Map<Long, TokenCut> tokens = new HashMap<>(); // where tokens are cut
    private final Map<NDArray, Parameter> leaves = new IdentityHashMap<>();
    private final List<DeferredHead> heads = new ArrayList<>();
    private final Map<NDArray, Region> taken = new IdentityHashMap<>();
    private final Set<NDArray> shared = Collections.newSetFromMap(new IdentityHashMap<>());
    private final Set<Long> inputs = new HashSet<>(); // nodes of the rank's rows of the batch
    private final Set<Long> masked = new HashSet<>(); // nodes of what dropout has returned
    private Region lossRegion = Region.WHOLE;
    private long structure = 17; // of what was noted

    /**
     * A node at which the region changes.
     *
     * @param above the region of its result
     * @param below the region of what it was computed from
     * @param uses where parameters were used between the two, if that is not in the graph
     */
    public record Boundary(Region above, Region below, Map<Parameter, Set<Region>> uses) {

        Boundary(Region above, Region below) {
            this(above, below, Map.of());
        }
    }

    /**
     * An array that holds a rank's slice of the features.
     *
     * @param name what it is, for errors
     * @param shape the shape of the slice
     * @param head if not {@code null}, it is not the slice but the features of this head
     */
    public record Slice(String name, long[] shape, DeferredHead head) {}

    PassTrace() {}

    /**
     * Notes that an array was computed from another region. Where an operation in place has taken
     * it through several, they have one node.
     *
     * @param array the array
     * @param above the region that it is in
     * @param below the region of what it was computed from
     */
    void boundary(NDArray array, Region above, Region below) {
        long node = node(array);
        if (node != 0) {
            Boundary before = boundaries.get(node);
            boolean inPlace = before != null && before.above().equals(below);
            boundaries.put(node, new Boundary(above, inPlace ? before.below() : below));
        }
        structure = 31 * structure + above.index() * 12L + below.index() + 1;
    }

    /**
     * Notes the output of a part whose graph was dropped.
     *
     * @param output the output
     * @param boundary where the part lies, and how it has used parameters
     * @param inner what says of the part what {@link #getStructure} says of the whole
     */
    void part(NDArray output, Boundary boundary, long inner) {
        structure = 31 * structure + inner;
        if (TensorView.of(output).requiresGradient()) {
            boundaries.put(AutogradGraph.nodeOf(output), boundary);
        }
    }

    /**
     * Notes a slice, or the features of a head.
     *
     * @param array the array
     * @param head the head, or {@code null}
     * @param name what it is, for errors
     */
    public void slice(NDArray array, DeferredHead head, String name) {
        long node = node(array);
        if (node != 0) {
            slices.put(node, new Slice(name, array.getShape().getShape(), head));
        }
    }

    /**
     * Notes how a slice is cut, or how the slice has to be that an array was computed from.
     *
     * @param array a slice, or what a layer that takes slices has computed of one
     * @param cut the cut of the slice
     */
    public void cut(NDArray array, Cut cut) {
        long node = node(array);
        if (node != 0) {
            cuts.put(node, cut);
        }
    }

    /**
     * Notes what dropout has returned, whose mask follows from where its elements lie.
     *
     * @param output the output
     * @param cut how the mask is cut over the ranks, or {@code null}
     */
    public void mask(NDArray output, Cut cut) {
        masked.add(node(output));
        if (cut != null) {
            cut(output, cut);
        }
    }

    /** {@return the nodes of what dropout has returned} */
    public Set<Long> getMasked() {
        return masked;
    }

    /**
     * Notes that an array has entered a region of slices for several layers.
     *
     * @param array the array
     */
    public void share(NDArray array) {
        shared.add(array);
    }

    /**
     * Returns whether an array has entered a region of slices before a layer got it.
     *
     * @param array the input of a layer
     * @return whether the layer must not enter the region itself
     */
    public boolean isShared(NDArray array) {
        return shared.contains(array);
    }

    /** Makes arrays that are the beginning of a pass a part of the graph. */
    NDList watch(NDList input, Region region) {
        NDList watched = new NDList(input.size());
        for (NDArray array : input) {
            NDArray own = Autograd.tracked(array);
            own.setName(array.getName());
            boundary(own, region, region);
            inputs.add(AutogradGraph.nodeOf(own));
            watched.add(own);
        }
        return watched;
    }

    /** Notes a node from which on the tokens are cut over the ranks. */
    void tokens(NDArray array, TokenCut cut) {
        long node = node(array);
        if (node != 0) {
            tokens.put(node, cut);
        }
    }

    /** Notes a head that has left its output to the loss. */
    void addHead(DeferredHead head) {
        heads.add(head);
    }

    private long node(NDArray array) {
        if (!Autograd.isRecording() || !TensorView.of(array).requiresGradient()) {
            return 0;
        }
        return AutogradGraph.nodeOf(array); // 0 of a leaf: there is none yet
    }

    /** Forgets the nodes of a graph that is freed: their addresses will be those of others. */
    public void forgetNodes() {
        boundaries.clear();
        inputs.clear();
        slices.clear();
        cuts.clear();
        tokens.clear();
        masked.clear();
    }

    /**
     * Begins a loss.
     *
     * @param rows how the rows lie that it is computed of
     */
    public void beginLoss(Region.Rows rows) {
        lossRegion = Region.WHOLE.with(rows);
    }

    /**
     * Returns the region that the loss is computed in.
     *
     * @return the region
     */
    public Region getLossRegion() {
        return lossRegion;
    }

    /**
     * Notes that a loss has taken the slices of all ranks.
     *
     * @param node the node of the graph that stands for it
     */
    public void takeSlices(long node) {
        boundaries.put(node, new Boundary(lossRegion, lossRegion.with(Region.Features.SHARD)));
    }

    /**
     * Notes that a loss that is not trained on has taken the slices of all ranks.
     *
     * @param slice the slice
     */
    public void takeValues(NDArray slice) {
        taken.put(slice, lossRegion.with(Region.Features.SHARD));
    }

    /**
     * {@return the slices that losses have taken without a part of the graph, and their regions}
     */
    public Map<NDArray, Region> getTaken() {
        return taken;
    }

    /**
     * Notes that a leaf of the graph stands for a parameter.
     *
     * @param leaf an array that requires a gradient
     * @param parameter the parameter that its gradient is made use of for
     */
    public void addLeaf(NDArray leaf, Parameter parameter) {
        leaves.put(leaf, parameter);
    }

    /**
     * Notes that a block has asked for a parameter.
     *
     * @param parameter the parameter
     */
    public void use(Parameter parameter) {
        int trained = parameter.requiresGradient() ? 1 : 0; // what is frozen is not in the graph
        structure = 31 * structure + 2L * System.identityHashCode(parameter) + trained;
    }

    /**
     * Returns what two passes have in common that have asked for the same parameters and changed
     * regions alike, in the same order, and have computed the same with the same shapes where
     * features or tokens are cut: where it is equal, the pass need not be analysed again.
     *
     * @param result what was computed
     * @return a hash of the pass
     */
    public long getStructure(NDArray result) {
        Set<Long> parts = new HashSet<>(tokens.keySet());
        slices.forEach(
                (node, slice) -> {
                    if (slice.head() == null) {
                        parts.add(node);
                    }
                });
        return 31 * structure + GraphStructure.of(result, parts, boundaries.keySet());
    }

    /** {@return the nodes of the network's inputs, below which nothing is trained} */
    public Set<Long> getInputs() {
        return inputs;
    }

    /** {@return the boundaries, at which the region changes, by the address of the node} */
    public Map<Long, Boundary> getBoundaries() {
        return boundaries;
    }

    /** {@return the slices by the address of their node} */
    public Map<Long, Slice> getSlices() {
        return slices;
    }

    /** {@return the cuts of slices, and of those that were taken, by the address of the node} */
    public Map<Long, Cut> getCuts() {
        return cuts;
    }

    /** {@return how the tokens are cut where sequence-parallel regions begin, by the node} */
    public Map<Long, TokenCut> getTokens() {
        return tokens;
    }

    /**
     * Returns the leaves that stand for a parameter. Their nodes are known while there is a graph.
     *
     * @return the parameters by the address of the node
     */
    public Map<Long, Parameter> getLeaves() {
        Map<Long, Parameter> nodes = new HashMap<>();
        leaves.forEach((leaf, parameter) -> nodes.put(AutogradGraph.nodeOfLeaf(leaf), parameter));
        return nodes;
    }

    /** {@return the heads that have left their output to the loss} */
    public List<DeferredHead> getHeads() {
        return heads;
    }
}
