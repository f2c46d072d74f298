package io.djltp.plan;

import ai.djl.nn.Block;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.sharding.ShardingStrategy;

import java.util.function.Predicate;
import java.util.function.UnaryOperator;

/**
 * What a plan makes of a block: a parallel one with the same parameters. Styles are values; the
 * options of {@link Column} and {@link Row} return another style.
 *
 * <p>The idea of a map from a name to a style is PyTorch's {@code parallelize_module} ({@code
 * torch.distributed.tensor.parallel}); {@code docs/plans.md} has a table of the names in PyTorch,
 * Megatron-LM and MAX.
 */
public class Style {
    private final String name;
    private final String wanted;
    private final Class<? extends Block> type; // or null: the class of the block
    private final Predicate<Block> isFor;
    private final UnaryOperator<Block> parallel;

    /**
     * Creates a style.
     *
     * @param name how a plan is written with it, for messages
     * @param wanted what the style is for, for messages
     * @param type the class that a block becomes, or {@code null} if it stays as it is
     * @param isFor whether a block can have the style
     * @param parallel makes the parallel block with the parameters of a block
     */
    Style(
            String name,
            String wanted,
            Class<? extends Block> type,
            Predicate<Block> isFor,
            UnaryOperator<Block> parallel) {
        this.name = name;
        this.wanted = wanted;
        this.type = type;
        this.isFor = isFor;
        this.parallel = parallel;
    }

    /**
     * Returns the style of a {@code Linear} whose output features are cut: axis 0 of the weight.
     *
     * @return the style, which leaves each rank its slice of the output
     */
    public static Column column() {
        return new Column(false, false, null);
    }

    /**
     * Returns the style of a {@code Linear} whose input features are cut: axis 1 of the weight.
     *
     * @return the style, which takes the slice that a column leaves
     */
    public static Row row() {
        return new Row(false, false, null);
    }

    /**
     * Returns the style of a last {@code Linear} over many classes, which becomes a {@link
     * io.djltp.nn.ClassificationHead} for a {@code VocabParallelCrossEntropyLoss}.
     *
     * @return the style
     */
    public static Style head() {
        return Styles.HEAD;
    }

    /**
     * Returns the style of DJL's {@code ScaledDotProductAttentionBlock}, whose heads are cut.
     *
     * @return the style
     */
    public static Style attention() {
        return Styles.ATTENTION;
    }

    /**
     * Returns the style of DJL's {@code TransformerEncoderBlock}: its attention by heads, the
     * linear layers of its feed-forward part by column and row, and its dropout.
     *
     * @return the style
     */
    public static Style encoder() {
        return Styles.ENCODER;
    }

    /**
     * Returns the style of DJL's {@code BertBlock}: each of its encoders, and its dropout. Its
     * embeddings stay on every rank: DJL's class can hold none but its own.
     *
     * @return the style
     */
    public static Style bert() {
        return Styles.BERT;
    }

    /**
     * Returns the style of DJL's {@code Dropout}, which becomes a {@link
     * io.djltp.nn.ParallelDropout}: one mask over all ranks.
     *
     * @return the style
     */
    public static Style dropout() {
        return Styles.DROPOUT;
    }

    /**
     * Returns the style of DJL's {@code BatchNorm}, which becomes a {@link
     * io.djltp.nn.SyncBatchNorm}: the statistics of the whole batch where its rows are cut.
     *
     * @return the style
     */
    public static Style batchNorm() {
        return Styles.BATCH_NORM;
    }

    /**
     * Returns the style of DJL's {@code Embedding}, such as a {@code TrainableWordEmbedding}, whose
     * vocabulary is cut: it becomes a {@link io.djltp.nn.VocabParallelEmbedding}.
     *
     * @return the style
     */
    public static Style vocabulary() {
        return Styles.VOCABULARY;
    }

    /**
     * Returns the style of any block that every rank has a replica of, whatever {@link Plan#auto}
     * would make of it.
     *
     * @return the style
     */
    public static Style replicate() {
        return Styles.REPLICATE;
    }

    /** Returns whether a block can have the style. */
    final boolean isFor(Block block) {
        return isFor.test(block);
    }

    /** Returns what the style is for, for messages. */
    final String wanted() {
        return wanted;
    }

    /** Returns the class that the block becomes. */
    final Class<? extends Block> typeOf(Block block) {
        return type == null ? block.getClass() : type;
    }

    /** Returns the parallel block with the parameters of this one. */
    final Block parallel(Block block) {
        return parallel.apply(block);
    }

    /** Returns whether the style is one of all blocks below the block, too. */
    final boolean isWhole() {
        return Styles.WHOLE.contains(this);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return name;
    }

    private static String option(boolean isSet, String text) {
        return isSet ? "." + text : "";
    }

    /**
     * A {@code Linear} layer that becomes a {@link ColumnParallelLinear}: output features are cut.
     */
    public static final class Column extends Style {
        private final boolean gathers;
        private final boolean fromRows;
        private final ShardingStrategy strategy; // or null: balanced

        Column(boolean gathers, boolean fromRows, ShardingStrategy strategy) {
            super(
                    "column()"
                            + option(gathers, "gatherOutput()")
                            + option(fromRows, "batchShardedInput()")
                            + option(strategy != null, "strategy(" + strategy + ")"),
                    "DJL's Linear",
                    ColumnParallelLinear.class,
                    Styles::isLinear,
                    linear -> {
                        ColumnParallelLinear.Builder builder =
                                ColumnParallelLinear.builder()
                                        .setUnits(Styles.units(linear))
                                        .optBias(Styles.hasBias(linear))
                                        .optGatherOutput(gathers)
                                        .optBatchShardedInput(fromRows);
                        if (strategy != null) {
                            builder.optShardingStrategy(strategy);
                        }
                        return Styles.move(linear, builder.build());
                    });
            this.gathers = gathers;
            this.fromRows = fromRows;
            this.strategy = strategy;
        }

        /**
         * Returns a style that gives every rank the whole output, by an all-gather.
         *
         * @return the style
         */
        public Column gatherOutput() {
            return new Column(true, fromRows, strategy);
        }

        /**
         * Returns a style for the layer where the data-parallel body ends in MIXED mode.
         *
         * @return the style
         */
        public Column batchShardedInput() {
            return new Column(gathers, true, strategy);
        }

        /**
         * Returns a style that cuts the weight as it is told to.
         *
         * @param shardingStrategy the strategy, which cuts axis 0
         * @return the style
         */
        public Column strategy(ShardingStrategy shardingStrategy) {
            return new Column(gathers, fromRows, shardingStrategy);
        }
    }

    /**
     * A {@code Linear} layer that becomes a {@link RowParallelLinear}: input features are cut. Its
     * output is always summed over the ranks, so that no plan can leave a summand for the whole.
     */
    public static final class Row extends Style {
        private final boolean scatters;
        private final boolean toRows;
        private final ShardingStrategy strategy; // or null: balanced

        Row(boolean scatters, boolean toRows, ShardingStrategy strategy) {
            super(
                    "row()"
                            + option(scatters, "scatterInput()")
                            + option(toRows, "batchShardedOutput()")
                            + option(strategy != null, "strategy(" + strategy + ")"),
                    "DJL's Linear",
                    RowParallelLinear.class,
                    Styles::isLinear,
                    linear -> {
                        RowParallelLinear.Builder builder =
                                RowParallelLinear.builder()
                                        .setUnits(Styles.units(linear))
                                        .optBias(Styles.hasBias(linear))
                                        .optInputIsParallel(!scatters)
                                        .optBatchShardedOutput(toRows);
                        if (strategy != null) {
                            builder.optShardingStrategy(strategy);
                        }
                        return Styles.move(linear, builder.build());
                    });
            this.scatters = scatters;
            this.toRows = toRows;
            this.strategy = strategy;
        }

        /**
         * Returns a style for a layer whose input is whole: it takes the rank's slice itself.
         *
         * @return the style
         */
        public Row scatterInput() {
            return new Row(true, toRows, strategy);
        }

        /**
         * Returns a style after which the batch is cut again in MIXED mode.
         *
         * @return the style
         */
        public Row batchShardedOutput() {
            return new Row(scatters, true, strategy);
        }

        /**
         * Returns a style that cuts the weight as it is told to.
         *
         * @param shardingStrategy the strategy, which cuts axis 1
         * @return the style
         */
        public Row strategy(ShardingStrategy shardingStrategy) {
            return new Row(scatters, toRows, shardingStrategy);
        }
    }
}
