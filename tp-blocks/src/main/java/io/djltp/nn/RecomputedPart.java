package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.training.ParameterStore;

import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.RandomDraws;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.RepeatedPart;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.region.Recomputation;

import java.util.function.Function;

/**
 * A part of a block that a rank computes twice, once in the forward pass and again in the backward
 * pass, so that its arrays need not be kept in between. See {@link Recompute}.
 */
public final class RecomputedPart {

    private final ParallelContext context;
    private final RepeatedPart part;
    private final Function<NDList, NDArray> function;
    private final String name;

    private RecomputedPart(
            ParallelContext context,
            RepeatedPart part,
            Function<NDList, NDArray> function,
            String name) {
        this.context = context;
        this.part = part;
        this.function = function;
        this.name = name;
    }

    /**
     * Computes a part; where a rank trains it, in a way that its arrays are dropped and computed
     * again. With an ordinary parameter store, and in an evaluation, it is just computed.
     *
     * @param store the parameters
     * @param inputs the inputs of the part
     * @param training whether it is trained
     * @param name what it is, for errors
     * @param function computes the part from its inputs, the same at every call
     * @return the output
     */
    public static NDArray compute(
            ParameterStore store,
            NDList inputs,
            boolean training,
            String name,
            Function<NDList, NDArray> function) {
        ParallelContext context = RankParameterStore.contextOf(store);
        boolean kept =
                context == null
                        || !training
                        || !context.getPass().isTraining()
                        || !Autograd.isRecording();
        if (kept) {
            return function.apply(inputs);
        }
        RepeatedPart part = new RepeatedPart(context.getPass(), inputs, name);
        RecomputedPart computed = new RecomputedPart(context, part, function, name);
        Recomputation recomputation =
                new Recomputation(computed::run, context.getMappings().getFailure());
        return part.leave(recomputation.forward(part.getInputs()));
    }

    /** Computes the part, in the forward or in the backward pass. */
    private NDArray run(NDList values) {
        ForwardPass present = context.getPass();
        boolean refused = RandomDraws.isRefused();
        ForwardPass inner = part.begin(values.head().getManager());
        context.resume(inner);
        RandomDraws.setRefused(true); // what is drawn would be others the second time
        try {
            return part.end(inner, function.apply(part.enter(inner, values)));
        } catch (RuntimeException e) {
            throw RandomDraws.isRefusal(e) ? drawn(e) : inner.explain(e);
        } finally {
            RandomDraws.setRefused(refused);
            context.resume(present);
        }
    }

    private RuntimeException drawn(RuntimeException cause) {
        UnsupportedOperationException e =
                new UnsupportedOperationException(
                        name
                                + " is recomputed in the backward pass, and draws random numbers in"
                                + " it, as DJL's Dropout does: the second time they would be"
                                + " others. Use io.djltp.nn.ParallelDropout, whose masks follow"
                                + " from a seed, or a rate of 0");
        e.addSuppressed(cause);
        return e;
    }
}
