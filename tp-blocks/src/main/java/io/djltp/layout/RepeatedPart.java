package io.djltp.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;

import io.djltp.layout.RegionScopes.Place;
import io.djltp.torch.Checksum;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * One call of a part of a network that is computed twice, in the forward pass and again in the
 * backward pass: where its inputs lie over the ranks, and what was found of it the first time.
 *
 * <p>Both computations have a graph, and both graphs are dropped. The first one is looked at for
 * the uses of parameters; of the second one it is checked that it is the same.
 */
public final class RepeatedPart {

    private final ForwardPass outer;
    private final String name;
    private final List<Place> places = new ArrayList<>();
    private final List<Long> keys = new ArrayList<>();
    private Place result; // of the first computation, or null before
    private Map<Parameter, Set<Region>> uses;
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
        inputs.forEach(input -> places.add(placeOf(outer, input)));
    }

    private static Place placeOf(ForwardPass pass, NDArray array) {
        Region region = pass.regionOf(array);
        Place place = pass.scopes.placeOf(array);
        return place == null ? new Place(region, null) : place;
    }

    /**
     * Begins to compute the part.
     *
     * @param manager the manager of what it makes
     * @return its pass
     */
    public InnerPass begin(NDManager manager) {
        return new InnerPass(outer, manager, keys, result != null);
    }

    /**
     * Takes values of the inputs to where the inputs lie.
     *
     * @param inner the pass of the part
     * @param values the values
     * @return the same
     */
    public NDList enter(InnerPass inner, NDList values) {
        for (int i = 0; i < values.size(); i++) {
            Place place = places.get(i);
            inner.getTrace().boundary(values.get(i), place.region(), place.region());
            settle(inner, values.get(i), place);
        }
        return values;
    }

    private void settle(ForwardPass pass, NDArray array, Place place) {
        if (place.layout() == null && place.tokens() == null) {
            pass.scopes.attach(array, place.region());
            return;
        }
        if (place.layout() != null) {
            pass.getTrace().slice(array, place.layout().head(), "What " + name + " recomputes");
            pass.getTrace().cut(array, place.layout().cut());
        } else {
            pass.getTrace().tokens(array, place.tokens());
        }
        pass.scopes.attach(array, place);
    }

    /**
     * Ends a computation of the part. To be called while its pass is the present one.
     *
     * @param inner the pass of the part
     * @param y what it has computed
     * @throws IllegalArgumentException if the part cannot be computed by ranks
     * @throws IllegalStateException if it has computed something else than the first time
     */
    public void end(InnerPass inner, NDArray y) {
        long found = inner.getTrace().getStructure(y);
        long sum = y.getDevice().isGpu() ? 0 : Checksum.of(y); // a GPU would be waited for
        if (result == null) {
            structure = found;
            checksum = sum;
            Place place = placeOf(inner, y);
            uses =
                    outer.analysis == null
                            ? Map.of()
                            : outer.analysis.usesIn(inner.getTrace(), y, place.region());
            result = place;
        } else if (structure != found || checksum != sum) {
            throw new IllegalStateException(
                    name
                            + " has not computed the same when it was computed again in the"
                            + " backward pass, so that its gradients would be those of something"
                            + " else: no block in it may change what the next call computes, or"
                            + " draw random numbers of its own, and none of its parameters may be"
                            + " frozen or thawed between the forward and the backward pass");
        }
    }

    /**
     * Takes the output to where the part has left it.
     *
     * @param output the output, in the graph of the whole pass
     * @param entries views of the inputs, at which the part begins in that graph; {@code null} for
     *     an input that needs no gradient
     * @return the output
     */
    public NDArray leave(NDArray output, List<NDArray> entries) {
        PassTrace trace = outer.getTrace();
        for (int i = 0; i < entries.size(); i++) {
            if (entries.get(i) != null) {
                trace.boundary(entries.get(i), Region.WHOLE, places.get(i).region());
            }
        }
        trace.part(output, new PassTrace.Boundary(result.region(), Region.WHOLE, uses), structure);
        settle(outer, output, result);
        return output;
    }
}
