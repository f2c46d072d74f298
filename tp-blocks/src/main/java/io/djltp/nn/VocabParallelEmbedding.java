package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import ai.djl.util.Preconditions;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.cut.Cut;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.ForecastBlock;
import io.djltp.forecast.ForecastMappings;
import io.djltp.forecast.PassForecast;
import io.djltp.internal.update.TableShard;
import io.djltp.layout.Region.Rows;
import io.djltp.parameters.HeldParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.sharding.ShardingStrategy;

/**
 * An embedding whose vocabulary is cut over the ranks: axis 0 of the weight. Each rank looks up the
 * rows that it holds, and the sum over the ranks is the row of each id.
 *
 * <ul>
 *   <li>input: ids, [x1, ..., xn] of any numeric type, from 0 to the size of the vocabulary less
 *       one, the same on all ranks, or this rank's rows of the batch
 *   <li>weight: [vocabulary/p, features] of the logical [vocabulary, features]
 *   <li>output: [x1, ..., xn, features], of the same rows as the input
 * </ul>
 *
 * <p>Collectives: one all-reduce forward, of one row of features for each id, and none backward. In
 * MIXED mode the ids of all ranks are put together by an all-gather, and a reduce-scatter takes the
 * place of the all-reduce; backward there is one all-gather. In DATA mode the weight is not cut and
 * its gradient is summed as any other. With {@code optSequenceParallel} a reduce-scatter forward
 * and an all-gather backward leave each rank its tokens.
 *
 * <p>The gradient of the weight is dense and has the bits of that of the whole embedding: gradients
 * of an id that comes several times are added up in the order of the ids. The row of {@code
 * optPaddingIndex} gets none from lookups; unlike PyTorch's, it is initialized as all rows are.
 *
 * <p>An id that is none of the vocabulary is an error of every rank that has it, before anything is
 * looked up. That takes the host one number of the device.
 *
 * <p>Under an ordinary parameter store it is the unsharded lookup. It saves and loads what DJL's
 * {@code Embedding} with a dense gradient does.
 *
 * <p>The layer is that of Megatron-LM (Shoeybi et al., 2019, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>).
 */
public class VocabParallelEmbedding extends SavedEmbedding implements ForecastBlock {

    private final Parameter weight;
    private final long vocabularySize;
    private final long embeddingSize;
    private final long paddingIndex;
    private final ShardingStrategy shardingStrategy;
    private final boolean sequenceParallel;
    private ClassificationHead head; // that updates the weight itself, or null

    /**
     * Creates an embedding.
     *
     * @param builder the builder
     */
    @SuppressWarnings("this-escape") // addParameter is called, as in DJL's blocks
    protected VocabParallelEmbedding(Builder builder) {
        vocabularySize = builder.vocabularySize;
        embeddingSize = builder.embeddingSize;
        paddingIndex = builder.paddingIndex;
        shardingStrategy = ShardingStrategy.withoutReplicas(builder.shardingStrategy);
        sequenceParallel = builder.sequenceParallel;
        weight = addParameter(newWeight(vocabularySize, embeddingSize));
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray ids = inputs.singletonOrThrow();
        ParallelContext context = RankParameterStore.contextOf(parameterStore);
        if (context == null) {
            HeldParameters.checkWhole(weight, getClass().getSimpleName());
        }
        NDArray values =
                RankParameterStore.shardOf(parameterStore, weight, ids.getDevice(), training);
        if (context == null) {
            TableShard whole = shard(null);
            whole.check(ids, describe());
            return new NDList(whole.rows(values, ids));
        }
        boolean tied = head != null && training && weight.requiresGradient();
        EmbeddingPass pass = new EmbeddingPass(this, context, tied ? head.lookups(context) : null);
        return new NDList(pass.forward(values, ids, sequenceParallel));
    }

    /** Returns the rows of a rank, or all of them outside of ranks. */
    TableShard shard(ParallelContext context) {
        int size = context == null ? 1 : context.getTensorGroup().getSize();
        if (size == 1) {
            return new TableShard(Cut.ofLengths(vocabularySize), 0, paddingIndex);
        }
        Cut cut = shardingStrategy.cut(weight.getShape(), size);
        return new TableShard(cut, context.getTensorGroup().getRank(), paddingIndex);
    }

    /** {@inheritDoc} */
    @Override
    String describe() {
        return getClass().getSimpleName() + " " + weight.getShape();
    }

    /** {@inheritDoc} */
    @Override
    Parameter weight() {
        return weight;
    }

    /** Returns how the vocabulary is cut. */
    ShardingStrategy strategy() {
        return shardingStrategy;
    }

    /** Lets a head that updates the weight itself take this block's gradient, unless one does. */
    void tieTo(ClassificationHead fused) {
        Preconditions.checkArgument(
                head == null,
                describe()
                        + " is tied to a fused ClassificationHead already, which updates the weight"
                        + " itself: build both heads with optFusedLoss(false)");
        head = fused;
    }

    /** {@inheritDoc} */
    @Override
    public ShardingStrategy getShardingStrategy(Parameter parameter) {
        return shardingStrategy;
    }

    /**
     * {@inheritDoc}
     *
     * <p>An embedding gathers the ids itself, and gives each rank its rows back.
     */
    @Override
    public boolean isBatchShardedInput() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        long features = weight.getShape().get(1);
        ForecastArray rows =
                input.withShape(input.shape().add(features)).with(weight.requiresGradient());
        if (pass.getTensorSize() == 1) {
            forecastUse(pass, input);
            return rows;
        }
        ForecastMappings mappings = pass.getMappings(this);
        if (sequenceParallel) {
            forecastUse(pass, input);
            return mappings.reduceScatterTokens(rows);
        }
        if (!pass.getMesh().isOverlaid() || !input.region().isRowsCut()) {
            forecastUse(pass, input);
            return mappings.reduceFromRegion(rows);
        }
        ForecastArray ids = input.with(Rows.WHOLE);
        pass.add(
                "the rows of the batch",
                Direction.FORWARD,
                Collective.ALL_GATHER,
                pass.getDataSize(),
                pass.local(ids).size() * pass.getIdType().getNumOfBytes());
        forecastUse(pass, ids);
        return mappings.reduceScatterToSequenceRegion(rows.with(Rows.WHOLE));
    }

    /**
     * Notes the use of the weight. Where a fused head updates it, that exchanges the numbers of
     * lookups, the places of the rows, and their gradients: {@link TiedLookups}.
     */
    private void forecastUse(PassForecast pass, ForecastArray ids) {
        pass.use(weight, ids);
        boolean lookups = head != null && weight.requiresGradient();
        int size = pass.getDataSize();
        if (!lookups || !ids.region().isRowsCut() || size == 1) {
            return;
        }
        if (pass.getTensorSize() > 1 || paddingIndex >= 0) {
            throw new IllegalArgumentException(
                    describe()
                            + " is tied to a fused ClassificationHead, and the gradients of its"
                            + " lookups are exchanged along the axis data: how many a rank has"
                            + " follows from the ids, and not from shapes. Build the head with"
                            + " optFusedLoss(false), or count a step with CommunicationCounter");
        }
        long all = ids.shape().size();
        String issuer = "the gradient of the embedding " + pass.nameOf(weight);
        for (long bytes :
                new long[] {
                    2L * size * Integer.BYTES,
                    all * Integer.BYTES,
                    pass.bytes(new Shape(all, weight.getShape().get(1)))
                }) {
            pass.add(issuer, Direction.STEP, Collective.ALL_GATHER, size, bytes);
        }
    }

    /** {@inheritDoc} */
    @Override
    public String getEquation() {
        String sum = sequenceParallel ? "y[r] = tokens r of Σ W[r][id]" : "y = Σ W[r][id]";
        return sum + ", zeros where rank r does not have the row";
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {inputShapes[0].add(embeddingSize)};
    }

    /** {@inheritDoc} */
    @Override
    public void initializeChildBlocks(NDManager manager, DataType dataType, Shape... inputShapes) {
        // there are none
    }

    /**
     * Creates a builder to build a {@code VocabParallelEmbedding}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link VocabParallelEmbedding}. */
    public static class Builder {

        private long vocabularySize;
        private long embeddingSize;
        private long paddingIndex = -1;
        private ShardingStrategy shardingStrategy = ShardingStrategy.axiswise(0);
        private boolean sequenceParallel;

        /** Creates a builder. */
        protected Builder() {}

        /**
         * Sets the number of ids. It need not be divisible by the number of ranks.
         *
         * @param size the size of the vocabulary
         * @return this builder
         */
        public Builder setVocabularySize(long size) {
            vocabularySize = size;
            return this;
        }

        /**
         * Sets the length of a row.
         *
         * @param size the features of an id
         * @return this builder
         */
        public Builder setEmbeddingSize(long size) {
            embeddingSize = size;
            return this;
        }

        /**
         * Sets the id that fills up: lookups of its row have no gradient. Default: none.
         *
         * @param id the id
         * @return this builder
         */
        public Builder optPaddingIndex(long id) {
            paddingIndex = id;
            return this;
        }

        /**
         * Sets how the vocabulary is cut over the ranks: for lengths of your choice, such as {@code
         * ShardingStrategy.rowwise(Cut.ofLengths(5, 3))}. Default: balanced ranges.
         *
         * @param strategy the strategy, which cuts axis 0
         * @return this builder
         */
        public Builder optShardingStrategy(ShardingStrategy strategy) {
            shardingStrategy = strategy;
            return this;
        }

        /**
         * Sets whether ranks get their tokens only, as by {@link SequenceScatter}. Default: false.
         *
         * @param sequenceParallel whether the output is cut
         * @return this builder
         */
        public Builder optSequenceParallel(boolean sequenceParallel) {
            this.sequenceParallel = sequenceParallel;
            return this;
        }

        /**
         * Builds the embedding.
         *
         * @return the embedding
         */
        public VocabParallelEmbedding build() {
            Preconditions.checkArgument(
                    vocabularySize > 0 && embeddingSize > 0,
                    "An embedding needs ids and features, not "
                            + vocabularySize
                            + " x "
                            + embeddingSize);
            Preconditions.checkArgument(
                    paddingIndex >= -1 && paddingIndex < vocabularySize,
                    String.format(
                            "The padding index is %d, and the ids of a vocabulary of %d are 0 to"
                                    + " %d",
                            paddingIndex, vocabularySize, vocabularySize - 1));
            Shape shape = new Shape(vocabularySize, embeddingSize);
            Preconditions.checkArgument(
                    !shardingStrategy.isReplicated() && shardingStrategy.axis(shape) == 0,
                    "An embedding cuts axis 0, the vocabulary, and cannot take "
                            + shardingStrategy);
            return new VocabParallelEmbedding(this);
        }
    }
}
