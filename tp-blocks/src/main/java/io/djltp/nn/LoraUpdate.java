package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.PairList;

import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region;
import io.djltp.internal.layout.Region.Features;
import io.djltp.internal.parameters.HeldParameters;
import io.djltp.internal.parameters.LowRank;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.TorchOperations;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

import java.io.DataOutputStream;
import java.io.IOException;

/**
 * The low-rank update of a parallel layer, {@code s drop(x) A^T B^T}. Of a layer whose outputs are
 * cut, B is cut as the weight and A is whole; of one whose inputs are cut, A is cut and B is whole,
 * and the update is a summand as the layer's product is. It communicates nothing: the gradients of
 * what is whole are summands, which are summed as any gradient of its region.
 */
final class LoraUpdate extends AbstractBlock implements ShardedBlock, LowRank {

    private static final byte VERSION = 1;

    private final AbstractParallelLinear layer;
    private final int rank;
    private final int parts;
    private final float scale;
    private final Parameter a;
    private final Parameter b;
    private final @Nullable ParallelDropout dropout;

    @SuppressWarnings("this-escape") // the parameters are those of a parent class
    LoraUpdate(AbstractParallelLinear layer, LoraConfig config, int parts) {
        super(VERSION);
        this.layer = layer;
        this.parts = parts;
        rank = config.getRank();
        scale = config.getScale();
        a = addParameter(parameter("A", LoraUpdate::kaimingUniform));
        b = addParameter(parameter("B", Initializer.ZEROS));
        float rate = config.getDropout();
        dropout =
                rate == 0
                        ? null
                        : addChildBlock("dropout", ParallelDropout.builder().optRate(rate).build());
    }

    private static Parameter parameter(String name, Initializer initializer) {
        return Parameter.builder()
                .setName(name)
                .setType(Parameter.Type.OTHER) // a trainer's initializer of weights is not for it
                .optInitializer(initializer)
                .build();
    }

    /** PyTorch's kaiming_uniform_ with a = sqrt(5), which is that of its linear layers. */
    private static NDArray kaimingUniform(NDManager manager, Shape shape, DataType type) {
        float bound = (float) (1 / Math.sqrt(shape.get(1)));
        return manager.randomUniform(-bound, bound, shape, type);
    }

    /**
     * Adds the update to a product.
     *
     * @param store the parameters, which know the rank
     * @param y the product of the layer, which is changed
     * @param x its input: of a layer whose inputs are cut, this rank's slice
     * @param training whether elements of the input are dropped
     * @return the sum
     */
    NDArray addTo(ParameterStore store, NDArray y, NDArray x, boolean training) {
        NDArray input = input(store, x, training ? dropout : null);
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context != null) {
            Region region = context.getPass().regionOf(input);
            context.getPass().use(a, region);
            context.getPass().use(b, region);
            input = context.getPass().take(input);
        }
        NDArray down = RankParameterStore.shardOf(store, a, x.getDevice(), training);
        NDArray up = RankParameterStore.shardOf(store, b, x.getDevice(), training);
        NDArray h = layer.product().of(input, down, null);
        // a number that libtorch keeps for the backward pass, so that it is an array of the pass
        h = h.mul(h.getManager().create(scale).toType(h.getDataType(), false));
        int last = h.getShape().dimension() - 1;
        NDList each = parts == 1 ? new NDList(h) : h.split(parts, last);
        NDList rows = parts == 1 ? new NDList(up) : up.split(parts, 0);
        NDList updates = new NDList();
        for (int i = 0; i < parts; i++) {
            updates.add(layer.product().of(each.get(i), rows.get(i), null));
        }
        NDArray update = TorchOperations.concat(updates, last);
        if (context != null && !layer.cutsInputs() && context.getTensorGroup().getSize() > 1) {
            update = context.getPass().enter(update, Features.SHARD); // whatever y is
        }
        return y.addi(update);
    }

    /** Returns what A is multiplied by. Of a whole input, ranks drop the same. */
    private NDArray input(ParameterStore store, NDArray x, @Nullable ParallelDropout drop) {
        ParallelContext context = RankParameterStore.contextOf(store);
        boolean alone = context == null || context.getTensorGroup().getSize() == 1;
        if (context == null || alone || layer.cutsInputs()) {
            return dropped(store, x, drop);
        }
        ForwardPass pass = context.getPass();
        NDArray whole = pass.enter(x.reshape(x.getShape()), Features.REPLICATED);
        return pass.enter(dropped(store, whole, drop), Features.SHARD); // gradients are summands
    }

    private static NDArray dropped(
            ParameterStore store, NDArray x, @Nullable ParallelDropout drop) {
        return drop == null ? x : drop.forward(store, new NDList(x), true).singletonOrThrow();
    }

    /** {@inheritDoc} Not used: the layer calls {@link #addTo}. */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        throw new UnsupportedOperationException();
    }

    /** {@inheritDoc} */
    @Override
    public ShardingStrategy getShardingStrategy(Parameter parameter) {
        boolean cut = parameter == (layer.cutsInputs() ? a : b);
        return cut ? layer.getShardingStrategy(layer.weight()) : ShardingStrategy.replicate();
    }

    /** {@inheritDoc} */
    @Override
    public boolean isBatchShardedInput() {
        return false;
    }

    /** {@inheritDoc} */
    @Override
    protected void prepare(Shape[] inputShapes) {
        Shape input = inputShapes[0];
        a.setShape(new Shape((long) parts * rank, input.get(input.dimension() - 1)));
        b.setShape(new Shape(layer.weight().getShape().get(0), rank));
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        if (dropout != null) {
            dropout.initialize(manager, dataType, inputShapes);
        }
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return layer.getOutputShapes(inputShapes);
    }

    /** {@inheritDoc} */
    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        os.write(version);
        saveMetadata(os);
        HeldParameters.save(this, os);
        if (dropout != null) {
            dropout.saveParameters(os);
        }
    }

    /** {@inheritDoc} */
    @Override
    public Parameter weight() {
        return layer.weight();
    }

    /** {@inheritDoc} */
    @Override
    public Parameter a() {
        return a;
    }

    /** {@inheritDoc} */
    @Override
    public Parameter b() {
        return b;
    }

    /** {@inheritDoc} */
    @Override
    public float scale() {
        return scale;
    }

    /** {@inheritDoc} */
    @Override
    public int parts() {
        return parts;
    }
}
