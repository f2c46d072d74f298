package io.djltp.testing;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.sharding.ShardingStrategy;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Networks of layers that are cut in other ways than into balanced ranges, for 1 to 4 ranks. */
public enum CutNetwork {

    /** Column, activation, row: both in lengths of the user's choice. */
    UNEVEN {
        @Override
        public Block create(int ranks) {
            Cut cut = uneven(ranks);
            return sequence(column(8, cut, false), relu(), row(cut, true));
        }
    },

    /** A stacked projection, of each part of which a rank has its share, then row. */
    STACKED {
        @Override
        public Block create(int ranks) {
            Cut cut = stacked(ranks);
            return sequence(column(12, cut, false), relu(), row(cut, true));
        }
    },

    /** The same, but put together in between, and cut again. */
    STACKED_AND_GATHERED {
        @Override
        public Block create(int ranks) {
            Cut cut = stacked(ranks);
            return sequence(column(12, cut, true), relu(), row(cut, false));
        }
    },

    /** Features that several ranks compute, of which the first gives them to all. */
    REPLICATED_AND_GATHERED {
        @Override
        public Block create(int ranks) {
            return sequence(column(6, grouped(6, ranks), true), relu(), linear(OUTPUTS));
        }
    },

    /** Four query heads, of which two and two share a key head: a layer for each. */
    GROUPED_QUERIES {
        @Override
        public Block create(int ranks) {
            Cut queries = queryHeads(ranks);
            GraphBlock block =
                    new GraphBlock(
                            new Shape(4 * DIM),
                            (call, input) -> {
                                NDArray q = own(call, call.call("queries", input.head()), queries);
                                Cut shared = keyHeads(ranks);
                                NDArray k = own(call, call.call("keys", input.head()), shared);
                                return whole(call, mixed(heads(q), heads(k)), queries);
                            });
            block.add("queries", column(4 * DIM, queries, false), FEATURES);
            block.add("keys", column(2 * DIM, keyHeads(ranks), false), FEATURES);
            return sequence(block, row(queries, true));
        }
    },

    /** The same heads, as the rows of one weight: each rank shares a part of its shard. */
    STACKED_QUERIES {
        @Override
        public Block create(int ranks) {
            Cut queries = queryHeads(ranks);
            Cut keys = keyHeads(ranks);
            Cut both =
                    ranks == 0
                            ? null
                            : Cut.of(
                                    6 * DIM,
                                    ranks,
                                    rank ->
                                            List.of(
                                                    queries.getRange(rank),
                                                    new ShardRange(
                                                            4 * DIM + keys.getRange(rank).start(),
                                                            keys.getRange(rank).length())));
            GraphBlock block =
                    new GraphBlock(
                            new Shape(4 * DIM),
                            (call, input) -> {
                                NDArray y = own(call, call.call("heads", input.head()), both);
                                NDArray all = heads(y);
                                // 6, or on a rank: 3 are 2 and 1, 2 are 1 and 1
                                long keyHeads = all.getShape().get(1) == 6 ? 2 : 1;
                                long queryHeads = all.getShape().get(1) - keyHeads;
                                NDArray q = all.get(":, 0:{}", queryHeads);
                                NDArray k = all.get(":, {}:", queryHeads);
                                return whole(call, mixed(q, k), queries);
                            });
            block.add("heads", column(6 * DIM, both, false), FEATURES);
            return sequence(block, row(queries, true));
        }
    };

    /** Features of the input. */
    public static final long FEATURES = 7;

    /** Features of the output. */
    public static final long OUTPUTS = 5;

    private static final long DIM = 4; // features of a head

    /**
     * Creates the network.
     *
     * @param ranks the number of ranks over which it is cut, or 0 for DJL's own layers
     * @return the network
     */
    public abstract Block create(int ranks);

    private static Block column(long units, Cut cut, boolean gather) {
        return cut == null
                ? linear(units)
                : Blocks.newColumn(units)
                        .optShardingStrategy(ShardingStrategy.rowwise(cut))
                        .optGatherOutput(gather)
                        .build();
    }

    private static Block row(Cut cut, boolean parallelInput) {
        if (cut == null) {
            return linear(OUTPUTS);
        }
        return Blocks.newRow(OUTPUTS)
                .optShardingStrategy(ShardingStrategy.columnwise(cut))
                .optInputIsParallel(parallelInput)
                .build();
    }

    private static Cut uneven(int ranks) {
        long[][] lengths = {null, {8}, {5, 3}, {1, 5, 2}, {3, 1, 2, 2}};
        return ranks == 0 ? null : Cut.ofLengths(lengths[ranks]);
    }

    private static Cut stacked(int ranks) {
        return ranks == 0
                ? null
                : Cut.of(
                        12,
                        ranks,
                        rank -> {
                            ShardRange part = Cut.balanced(4, ranks).getRange(rank);
                            List<ShardRange> ranges = new ArrayList<>();
                            for (int i = 0; i < 3; i++) {
                                ranges.add(new ShardRange(4 * i + part.start(), part.length()));
                            }
                            return ranges;
                        });
    }

    /** Two halves of some features: with two ranks both have both, with more some share one. */
    private static Cut grouped(long length, int ranks) {
        if (ranks == 0) {
            return null;
        }
        return ranks < 3
                ? Cut.replicated(length, ranks)
                : Cut.of(
                        length,
                        ranks,
                        rank -> List.of(new ShardRange(rank < 2 ? 0 : length / 2, length / 2)));
    }

    /** Four heads in balanced numbers. */
    private static Cut queryHeads(int ranks) {
        return ranks == 0
                ? null
                : Cut.ofLengths(
                        Arrays.stream(Cut.balanced(4, ranks).getShardLengths())
                                .map(count -> count * DIM)
                                .toArray());
    }

    /** The key heads of each rank's query heads: two of these share one. */
    private static Cut keyHeads(int ranks) {
        if (ranks == 0) {
            return null;
        }
        Cut queries = queryHeads(ranks);
        return Cut.of(
                2 * DIM,
                ranks,
                rank -> {
                    long first = queries.getRange(rank).start() / (2 * DIM);
                    long last = (queries.getRange(rank).end() - 1) / (2 * DIM);
                    return List.of(new ShardRange(first * DIM, (last - first + 1) * DIM));
                });
    }

    /** Takes a rank's shard, of which this network computes by its length. */
    private static NDArray own(GraphBlock.Call call, NDArray slice, Cut cut) {
        ParallelContext context = call.context();
        if (context == null || context.getTensorGroup().getSize() == 1) {
            return slice;
        }
        int rank = context.getTensorGroup().getRank();
        return context.getPass().takeSlice(slice, cut, rank, "CutNetwork");
    }

    private static NDList whole(GraphBlock.Call call, NDArray slice, Cut cut) {
        ParallelContext context = call.context();
        if (context == null || context.getTensorGroup().getSize() == 1) {
            return new NDList(slice);
        }
        ShardedLayout layout = new ShardedLayout(cut);
        return new NDList(context.getPass().enterSlice(slice, layout, "CutNetwork"));
    }

    /** Returns [rows, heads, 2, DIM / 2]. */
    private static NDArray heads(NDArray features) {
        return features.reshape(features.getShape().get(0), -1, 2, DIM / 2);
    }

    /** Multiplies the queries by the key that they share, [rows, query heads * DIM]. */
    private static NDArray mixed(NDArray q, NDArray k) {
        long rows = q.getShape().get(0);
        long keys = k.getShape().get(1);
        NDArray product =
                q.reshape(rows, keys, -1, 2, DIM / 2).mul(k.reshape(rows, keys, 1, 2, DIM / 2));
        return product.reshape(rows, -1);
    }
}
