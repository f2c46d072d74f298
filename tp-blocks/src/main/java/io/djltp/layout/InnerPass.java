package io.djltp.layout;

import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;

import java.util.List;
import java.util.function.LongSupplier;

/**
 * The pass of a part of a network whose arrays are dropped, and computed again in the backward
 * pass. It has managers of its own, and a trace of its own, whose nodes end with the part.
 *
 * <p>What a block would keep of it would be there twice, and of an array that is gone: it is
 * refused.
 */
public final class InnerPass extends ForwardPass {

    private final ForwardPass outer;
    private final List<Long> keys; // of random numbers, of the first computation
    private final boolean again;
    private int next;

    /**
     * Begins the pass.
     *
     * @param outer the pass that the part belongs to
     * @param manager the manager of what the part makes
     * @param keys the keys that the first computation has drawn, which that adds
     * @param again whether this is not the first computation
     */
    InnerPass(ForwardPass outer, NDManager manager, List<Long> keys, boolean again) {
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
        this.outer = outer;
        this.keys = keys;
        this.again = again;
    }

    /** {@inheritDoc} */
    @Override
    public void use(Parameter parameter, Region region) {
        if (!again) {
            outer.use(parameter, region);
        }
    }

    /**
     * Returns what the random numbers of a block follow from in its present call: where a part of a
     * network is computed again, what they have followed from before.
     *
     * @param pass the present pass
     * @param fresh gives the key of a call that was not computed before
     * @return the key
     */
    public static long keyOf(ForwardPass pass, LongSupplier fresh) {
        return pass instanceof InnerPass ? ((InnerPass) pass).key(fresh) : fresh.getAsLong();
    }

    private long key(LongSupplier fresh) {
        if (!again) {
            keys.add(keyOf(outer, fresh));
        } else if (next == keys.size()) {
            throw new IllegalStateException(
                    "What is recomputed draws more random numbers than it has in the forward pass:"
                            + " it has to compute the same both times");
        }
        return keys.get(next++);
    }

    /**
     * Refuses a block that keeps something of a pass where the pass is one that comes twice.
     *
     * @param pass the present pass
     * @param what what keeps something
     * @throws IllegalArgumentException if it does so in a part that is computed again
     */
    public static void checkKeeps(ForwardPass pass, String what) {
        if (pass instanceof InnerPass) {
            throw new IllegalArgumentException(
                    what
                            + " is in a part of the network that is recomputed (Recompute,"
                            + " optRecompute), and keeps something of each forward pass, which"
                            + " would come twice: let Recompute wrap what is before and after it,"
                            + " or build the layer with optRecompute(false)");
        }
    }

    /**
     * Refuses a parameter that forward passes change.
     *
     * @param pass the present pass
     * @param parameter the parameter that a block asks for
     * @throws IllegalArgumentException if it is one, in a part that is computed again
     */
    public static void checkUse(ForwardPass pass, Parameter parameter) {
        Parameter.Type type = parameter.getType();
        if (type == Parameter.Type.RUNNING_MEAN || type == Parameter.Type.RUNNING_VAR) {
            checkKeeps(
                    pass,
                    "A batch norm with the running statistics "
                            + parameter.getName()
                            + " "
                            + parameter.getShape());
        }
    }
}
