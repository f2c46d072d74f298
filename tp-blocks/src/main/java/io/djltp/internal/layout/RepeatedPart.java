package io.djltp.internal.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;

import io.djltp.internal.torch.Checksum;
import io.djltp.internal.torch.DelegatedArray;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.function.LongSupplier;

/**
 * One call of a part of a network that is computed twice, in the forward pass and again in the
 * backward pass: the placements of its inputs and of its output.
 */
public final class RepeatedPart {

    private final ForwardPass outer;
    private final String name;
    private final NDList inputs;
    private final List<Placement> placements = new ArrayList<>();
    private final List<Long> keys = new ArrayList<>();
    private @Nullable Placement result; // of the first computation, or null before
    private long structure;
    private long checksum;

    /**
     * Begins a call.
     *
     * @param outer the pass that the part belongs to
     * @param inputs the inputs of the part
     * @param name what it is, for errors
     */
    public RepeatedPart(ForwardPass outer, NDList inputs, String name) {
        this.outer = outer;
        this.name = name;
        this.inputs = new NDList(inputs.size());
        for (NDArray input : inputs) {
            this.inputs.add(DelegatedArray.unwrap(input));
            placements.add(outer.placementOf(input));
        }
    }

    /** {@return the inputs as arrays of the engine} */
    public NDList getInputs() {
        return inputs;
    }

    /**
     * Begins to compute the part.
     *
     * @param manager the manager of what it makes
     * @return its pass
     */
    public ForwardPass begin(NDManager manager) {
        return new InnerPass(manager, result != null);
    }

    /**
     * Gives values of the inputs the placements of the inputs.
     *
     * @param inner the pass of the part
     * @param values the values
     * @return the values as blocks get them
     */
    public NDList enter(ForwardPass inner, NDList values) {
        NDList placed = new NDList(values.size());
        for (int i = 0; i < values.size(); i++) {
            placed.add(inner.put(values.get(i), placements.get(i)));
        }
        return placed;
    }

    /**
     * Ends a computation of the part.
     *
     * @param inner the pass of the part
     * @param y what it has computed
     * @return the array of the engine
     * @throws IllegalStateException if it has computed something else than the first time
     */
    public NDArray end(ForwardPass inner, NDArray y) {
        NDArray raw = DelegatedArray.unwrap(y);
        long sum = raw.getDevice().isGpu() ? 0 : Checksum.of(raw); // a GPU would be waited for
        if (result == null) {
            structure = inner.getStructure();
            checksum = sum;
            result = inner.placementOf(y);
        } else if (structure != inner.getStructure() || checksum != sum) {
            throw new IllegalStateException(
                    name
                            + " has not computed the same when it was computed again in the"
                            + " backward pass, so that its gradients would be those of something"
                            + " else: no block in it may change what the next call computes, or"
                            + " draw random numbers of its own, and none of its parameters may be"
                            + " frozen or thawed between the forward and the backward pass");
        }
        return raw;
    }

    /**
     * Gives the output the placement that the part has left it with.
     *
     * @param output the output, in the graph of the whole pass
     * @return the output as blocks get it
     */
    public NDArray leave(NDArray output) {
        if (result == null) {
            throw new IllegalStateException(name + " has not been computed");
        }
        return outer.put(output, result);
    }

    /** The pass of the part: its placements are its own, and its uses of parameters count once. */
    private final class InnerPass extends ForwardPass {

        private final boolean again;
        private int next; // of the keys

        InnerPass(NDManager manager, boolean again) {
            super(
                    outer.getGlobalRows(),
                    outer.getRows(),
                    outer.getBatchCut().getRanks(),
                    outer.isOverlaid(),
                    manager,
                    false,
                    outer.getTensorRank());
            setPurpose(outer.isTraining(), outer.getForeign(), outer.getShards(), false);
            setPlacing(outer.isPlacing());
            this.again = again;
        }

        @Override
        public void use(@Nullable Parameter parameter, Region region) {
            if (!again) {
                outer.use(parameter, region);
            }
        }

        @Override
        public boolean isRepeated() {
            return true;
        }

        @Override
        public long keyOf(LongSupplier fresh) {
            if (!again) {
                keys.add(outer.keyOf(fresh));
            } else if (next == keys.size()) {
                throw new IllegalStateException(
                        "What is recomputed draws more random numbers than it has in the forward"
                                + " pass: it has to compute the same both times");
            }
            return keys.get(next++);
        }
    }
}
