package io.djltp.plan;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

/**
 * What a plan makes of a block: a parallel one with the same parameters. Styles are values; the
 * options of {@link Column} and {@link Row} return another style.
 *
 * <p>The idea of a map from a name to a style is PyTorch's {@code parallelize_module} ({@code
 * torch.distributed.tensor.parallel}); {@code docs/parallelize.md} has a table of the names in
 * PyTorch and Megatron-LM.
 */
public sealed interface Style permits BlockStyle {
    /**
     * Returns the style of a {@code Linear} whose output features are cut: axis 0 of the weight.
     *
     * @return the style, which leaves each rank its slice of the output
     */
    static Column column() {
        return new Column(false, false, null);
    }

    /**
     * Returns the style of a {@code Linear} whose input features are cut: axis 1 of the weight.
     *
     * @return the style, which takes the slice that a column leaves
     */
    static Row row() {
        return new Row(false, false, null);
    }

    /**
     * Returns the style of a last {@code Linear} over many classes, which becomes a {@link
     * io.djltp.nn.ClassificationHead} for a {@code VocabParallelCrossEntropyLoss}.
     *
     * @return the style
     */
    static Style head() {
        return Styles.HEAD;
    }

    /**
     * Returns the style of DJL's {@code ScaledDotProductAttentionBlock}, whose heads are cut.
     *
     * @return the style
     */
    static Style attention() {
        return Styles.ATTENTION;
    }

    /**
     * Returns the style of DJL's {@code TransformerEncoderBlock}: its attention by heads, the
     * linear layers of its feed-forward part by column and row, and its dropout.
     *
     * @return the style
     */
    static Style encoder() {
        return Styles.ENCODER;
    }

    /**
     * Returns the style of DJL's {@code BertBlock}: each of its encoders, and its dropout. Its
     * embeddings stay on every rank: DJL's class can hold none but its own.
     *
     * @return the style
     */
    static Style bert() {
        return Styles.BERT;
    }

    /**
     * Returns the style of DJL's {@code Dropout}, which becomes a {@link
     * io.djltp.nn.ParallelDropout}: one mask over all ranks.
     *
     * @return the style
     */
    static Style dropout() {
        return Styles.DROPOUT;
    }

    /**
     * Returns the style of DJL's {@code BatchNorm}, which becomes a {@link
     * io.djltp.nn.SyncBatchNorm}: the statistics of the whole batch where its rows are cut.
     *
     * @return the style
     */
    static Style batchNorm() {
        return Styles.BATCH_NORM;
    }

    /**
     * Returns the style that replaces DJL's {@code LayerNorm} after a column by a {@link
     * io.djltp.nn.ParallelLayerNorm}. Each rank has a slice of the features, and ranks combine
     * their statistics.
     *
     * @return the style
     */
    static Style layerNorm() {
        return Styles.LAYER_NORM;
    }

    /**
     * Returns the style of DJL's {@code Embedding}, such as a {@code TrainableWordEmbedding}, whose
     * vocabulary is cut: it becomes a {@link io.djltp.nn.VocabParallelEmbedding}.
     *
     * @return the style
     */
    static Style vocabulary() {
        return Styles.VOCABULARY;
    }

    /**
     * Returns the style of any block that every rank has a replica of, whatever {@link Plan#auto}
     * would make of it.
     *
     * @return the style
     */
    static Style replicate() {
        return Styles.REPLICATE;
    }

    /**
     * A {@code Linear} layer that becomes a {@link ColumnParallelLinear}: output features are cut.
     */
    final class Column extends BlockStyle {
        private final boolean gathers;
        private final boolean fromRows;
        private final @Nullable ShardingStrategy strategy; // or null: balanced

        Column(boolean gathers, boolean fromRows, @Nullable ShardingStrategy strategy) {
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
    final class Row extends BlockStyle {
        private final boolean scatters;
        private final boolean toRows;
        private final @Nullable ShardingStrategy strategy; // or null: balanced

        Row(boolean scatters, boolean toRows, @Nullable ShardingStrategy strategy) {
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
