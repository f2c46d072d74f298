package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Autograd;
import io.djltp.torch.TensorView;

import java.util.function.Function;

/** Moves weights between the ranks of many processes. All processes call the same. */
@SuppressWarnings("try") // a scope is used by being open
final class ShardExchange {

    private final RankPool ranks;

    ShardExchange(RankPool ranks) {
        this.ranks = ranks;
    }

    /**
     * Gathers the shards of a parameter in every process.
     *
     * @param issuer what needs them, for errors
     * @param strategy how it is cut
     * @param shards returns a local rank's shard
     * @param whole where the whole goes
     */
    void gather(
            String issuer,
            ShardingStrategy strategy,
            Function<ParallelContext, NDArray> shards,
            NDArray whole) {
        ranks.run(
                context -> {
                    Communicator group = context.getTensorGroup();
                    group.setIssuer(issuer);
                    NDArray shard = shards.apply(context);
                    for (int rank = 0; rank < group.getSize(); rank++) {
                        Shape shape = strategy.shardShape(whole.getShape(), rank, group.getSize());
                        broadcast(context, group, rank, shard, shape, strategy, whole);
                    }
                    return null;
                });
    }

    /** One rank's shard goes to all, and in each process one of them puts it in its place. */
    private static void broadcast(
            ParallelContext context,
            Communicator group,
            int root,
            NDArray shard,
            Shape shape,
            ShardingStrategy strategy,
            NDArray whole) {
        try (Autograd.GradMode mode = Autograd.gradMode(false);
                NDManager scope = shard.getManager().newSubManager()) {
            NDArray part =
                    root == group.getRank()
                            ? Autograd.detach(shard, scope)
                            : scope.create(shape, shard.getDataType());
            if (shape.size() > 0) {
                group.broadcast(TensorView.of(part), root).await();
            }
            if (context.getLocalIndex() == 0) {
                strategy.gather(part, whole, root, group.getSize());
            }
        }
    }

    /**
     * Gives a parameter the values of the first rank that has the same part of it on all ranks.
     *
     * @param issuer what needs them, for errors
     * @param axis the axis along which ranks have the same, or {@code null} if all have
     * @param replicas returns a local rank's replica
     */
    void replicate(String issuer, String axis, Function<ParallelContext, NDArray> replicas) {
        ranks.run(
                context -> {
                    NDArray replica = replicas.apply(context);
                    if (replica.size() > 0) {
                        Communicator group =
                                axis == null ? context.getWorld() : context.getGroup(axis);
                        group.setIssuer(issuer);
                        try (Autograd.GradMode mode = Autograd.gradMode(false);
                                NDArray values = Autograd.detach(replica, replica.getManager())) {
                            if (values.getDataType().isFloating()) {
                                group.broadcast(TensorView.of(values), 0).await();
                            } else { // of bytes and booleans too, which groups do not take
                                NDArray whole = values.toType(DataType.INT64, true);
                                group.broadcast(TensorView.of(whole), 0).await();
                                values.set(new NDIndex("..."), whole);
                                whole.close();
                            }
                        }
                    }
                    return null;
                });
    }
}
