package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import io.djltp.rank.DeviceMesh;
import io.djltp.rank.RankPool;
import io.djltp.torch.AlignedMemory;
import io.djltp.torch.Autograd;
import io.djltp.torch.TensorView;

import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Set;

/**
 * The replicas of parameters that are not cut. Rank 0 works on the model's own array where that is
 * on its device, the others on copies.
 */
@SuppressWarnings("try") // a scope is used by being open
final class ParameterReplicas {

    private final RankPool ranks;
    private final List<RankParameterStore> stores;

    ParameterReplicas(RankPool ranks, List<RankParameterStore> stores) {
        this.ranks = ranks;
        this.stores = stores;
    }

    /** Gives every rank of this process the model's values of a parameter. */
    void handOut(Parameter parameter) {
        NDArray array = parameter.getArray();
        boolean dense = TensorView.of(array).isContiguous(); // as updates need it: no transpose()
        for (int i = 0; i < stores.size(); i++) {
            RankParameterStore store = stores.get(i);
            boolean here = array.getDevice().equals(ranks.getContext(0).getDevice());
            boolean own = i == 0 && here;
            if (own && !(dense && AlignedMemory.holds(array))) {
                NDArray copy = copy(array, array.getManager()); // as those of the other ranks
                Placeholder.replace(parameter, copy);
            }
            NDArray value = own ? array : copy(array, store.getManager());
            if (own) {
                Autograd.zeroGradient(array); // of a trainer before, which a copy does not have
            }
            store.setValue(parameter, value);
        }
    }

    /**
     * Gives all ranks the values of the first that has the same part: another process may have
     * drawn or loaded others.
     */
    void agree(Block block, ParameterShards shards) {
        boolean overlaid = ranks.getContext(0).getMesh().isOverlaid();
        ShardExchange exchange = new ShardExchange(ranks);
        Set<Parameter> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        for (Pair<String, Parameter> named : block.getParameters()) {
            Parameter parameter = named.getValue();
            boolean cut = shards.contains(parameter);
            if (seen.add(parameter) && !(cut && overlaid)) {
                exchange.replicate(
                        "the initialization of " + named.getKey(),
                        cut ? DeviceMesh.DATA : null, // along which ranks have the same shard
                        context -> stores.get(context.getLocalIndex()).getHeld(parameter));
            }
        }
    }

    /** Copies the replica of rank 0 back if it is not the model's own array. */
    void copyBack(Parameter parameter) {
        NDArray value = stores.get(0).getHeld(parameter);
        NDArray array = parameter.getArray();
        if (value != array) {
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                assign(array, value);
            }
        }
    }

    private static NDArray copy(NDArray array, NDManager manager) {
        NDArray copy = manager.create(array.getShape(), array.getDataType());
        assign(copy, array);
        return copy;
    }

    /** Writes values in place, across devices. */
    private static void assign(NDArray target, NDArray values) {
        NDArray moved = values.toDevice(target.getDevice(), false); // the same if it is there
        target.set(new NDIndex("..."), moved);
        if (moved != values) {
            moved.close();
        }
    }
}
