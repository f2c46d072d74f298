package io.djltp.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.ndarray.types.SparseFormat;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import ai.djl.util.Preconditions;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.ForecastMappings;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region.Features;
import io.djltp.internal.layout.Region.Rows;
import io.djltp.internal.parameters.HeldParameters;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.DataRows;
import io.djltp.internal.rank.LateRefusal;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.region.RegionMappings;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.update.TableShard;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.Objects;

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
 * <p>An id out of the range of the vocabulary is an error of every rank that has it, before
 * anything is looked up. That takes the host one number of the device.
 *
 * <p>Under an ordinary parameter store it is the unsharded lookup. It saves and loads what DJL's
 * {@code Embedding} with a dense gradient does.
 *
 * <p>The layer is that of Megatron-LM (Shoeybi et al., 2019, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>).
 */
public class VocabParallelEmbedding extends AbstractBlock implements ShardedBlock, ForecastBlock {

    private static final byte VERSION = 6; // that of DJL's Embedding

    private final Parameter weight;
    private final long vocabularySize;
    private final long embeddingSize;
    private final long paddingIndex;
    private final ShardingStrategy shardingStrategy;
    private final boolean sequenceParallel;
    private @Nullable ClassificationHead head; // that updates the weight itself

    /**
     * Creates an embedding.
     *
     * @param builder the builder
     */
    @SuppressWarnings("this-escape") // addParameter is called, as in DJL's blocks
    protected VocabParallelEmbedding(Builder builder) {
        super(VERSION);
        vocabularySize = builder.vocabularySize;
        embeddingSize = builder.embeddingSize;
        paddingIndex = builder.paddingIndex;
        shardingStrategy = ShardingStrategy.withoutReplicas(builder.shardingStrategy);
        sequenceParallel = builder.sequenceParallel;
        weight = addParameter(newWeight(vocabularySize, embeddingSize));
    }

    /** Returns a weight that has the name of the one of DJL's embeddings. */
    static Parameter newWeight(long rows, long features) {
        return Parameter.builder()
                .setName("embedding")
                .setType(Parameter.Type.WEIGHT)
                .optShape(new Shape(rows, features))
                .build();
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        Errors.check(
                inputs.size() == 1,
                "%s looks up one array of ids, and gets %s arrays. A mask goes to the blocks that"
                        + " use it, such as a ParallelTransformer: give it to them in a block of"
                        + " your own, in place of a SequentialBlock",
                describe(),
                inputs.size());
        NDArray ids = inputs.head();
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context == null) {
            HeldParameters.checkWhole(weight, getClass().getSimpleName());
        }
        NDArray values = RankParameterStore.shardOf(store, weight, ids.getDevice(), training);
        if (context == null) {
            TableShard whole = shard(null);
            whole.check(ids, describe());
            return new NDList(whole.rows(values, ids));
        }
        boolean trained = training && weight.requiresGradient();
        RowGradients.Lookups lookups = head != null && trained ? head.lookups(context) : null;
        return new NDList(forwardRank(context, values, ids, lookups));
    }

    private NDArray forwardRank(
            ParallelContext context,
            NDArray values,
            NDArray ids,
            RowGradients.@Nullable Lookups lookups) {
        ForwardPass pass = context.getPass();
        RegionMappings mappings = context.getMappings(this);
        boolean gathered =
                context.getTensorGroup().getSize() > 1
                        && !sequenceParallel
                        && pass.isOverlaid()
                        && pass.regionOf(ids).isRowsCut();
        NDArray all = ids;
        if (gathered) {
            String what = "The input of " + describe();
            all = pass.enterGathered(DataRows.gather(context, ids, what));
        }
        NDArray rows = lookUp(context, values, all, lookups);
        if (context.getTensorGroup().getSize() == 1) {
            return rows;
        }
        if (sequenceParallel) {
            return SequenceRegion.reduceScatter(context, this, rows);
        }
        if (!gathered) {
            return pass.enter(mappings.reduceFromRegion(rows, true), Features.REPLICATED);
        }
        long count = all.getShape().get(0);
        Cut own = pass.getRowCut(context.getDataGroup().getSize(), count);
        return pass.enterScattered(mappings.reduceScatterToSequenceRegion(rows, own), count);
    }

    private NDArray lookUp(
            ParallelContext context,
            NDArray values,
            NDArray ids,
            RowGradients.@Nullable Lookups lookups) {
        TableShard shard = shard(context);
        NDArray checked = DelegatedArray.unwrap(check(context, shard, ids, describe()));
        NDArray own = DelegatedArray.unwrap(values);
        return lookups == null
                ? context.getPass().enterLike(shard.rows(own, checked), ids, weight)
                : context.getPass().enterLike(lookups.lookUp(shard, own, checked), ids);
    }

    /**
     * Checks ids: throws at once where all ranks have them, at the end of the pass where this one
     * has.
     *
     * @param context the rank, or {@code null} outside of ranks
     * @param shard the rows of the rank
     * @param ids the ids
     * @param what the table, for errors
     * @return the ids, or zeros where the pass goes on to its end
     * @throws IllegalArgumentException if an id is none of the table's
     */
    static NDArray check(
            @Nullable ParallelContext context, TableShard shard, NDArray ids, String what) {
        try {
            shard.check(ids, what);
            return ids;
        } catch (IllegalArgumentException e) {
            if (context == null || !context.getPass().regionOf(ids).isRowsCut()) {
                throw e;
            }
            LateRefusal.refuse(context, e);
            return ids.zerosLike();
        }
    }

    /** Returns the rows of a rank, or all of them outside of ranks. */
    TableShard shard(@Nullable ParallelContext context) {
        int size = context == null ? 1 : context.getTensorGroup().getSize();
        if (context == null || size == 1) {
            return new TableShard(Cut.ofLengths(vocabularySize), 0, paddingIndex);
        }
        Cut cut = shardingStrategy.cut(weight.getShape(), size);
        return new TableShard(cut, context.getTensorGroup().getRank(), paddingIndex);
    }

    private String describe() {
        return getClass().getSimpleName() + " " + weight.getShape();
    }

    Parameter weight() {
        return weight;
    }

    /** Returns how the vocabulary is cut. */
    ShardingStrategy strategy() {
        return shardingStrategy;
    }

    /** Lets a head that updates the weight itself take this block's gradient, unless one does. */
    void tieTo(ClassificationHead fused) {
        Errors.check(
                head == null,
                "%s is tied to a fused ClassificationHead already, which updates the weight"
                        + " itself: build both heads with optFusedLoss(false)",
                describe());
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
        boolean gathered =
                pass.getTensorSize() > 1
                        && !sequenceParallel
                        && pass.getMesh().isOverlaid()
                        && input.region().isRowsCut();
        ForecastArray ids = input;
        if (gathered) {
            ids = input.with(Rows.WHOLE);
            pass.add(
                    "the rows of the batch",
                    Direction.FORWARD,
                    Collective.ALL_GATHER,
                    pass.getDataSize(),
                    pass.local(ids).size() * pass.getIdType().getNumOfBytes());
        }
        forecastUse(pass, ids);
        Shape shape = input.shape().add(weight.getShape().get(1));
        ForecastArray rows = ids.withShape(shape).with(weight.requiresGradient());
        ForecastMappings mappings = pass.getMappings(this);
        if (pass.getTensorSize() == 1) {
            return rows;
        }
        if (sequenceParallel) {
            return mappings.reduceScatterTokens(rows);
        }
        return gathered
                ? mappings.reduceScatterToSequenceRegion(rows)
                : mappings.reduceFromRegion(rows);
    }

    /**
     * Notes the use of the weight. Where a fused head updates it, that exchanges the numbers of
     * lookups, the places of the rows, and their gradients: {@link RowGradients}.
     */
    private void forecastUse(PassForecast pass, ForecastArray ids) {
        pass.use(weight, ids);
        boolean lookups = head != null && weight.requiresGradient();
        int size = pass.getDataSize();
        if (!lookups || !ids.region().isRowsCut() || size == 1) {
            return;
        }
        Errors.check(
                pass.getTensorSize() <= 1 && paddingIndex < 0,
                "%s is tied to a fused ClassificationHead, and the gradients of its lookups are"
                        + " exchanged along the axis data: how many a rank has follows from the"
                        + " ids, and not from shapes. Build the head with optFusedLoss(false), or"
                        + " count a step with CommunicationCounter",
                describe());
        Shape rows = new Shape(ids.shape().size(), weight.getShape().get(1));
        RowGradients.forecast(
                pass, RowGradients.Lookups.ISSUER + pass.nameOf(weight), ids.shape(), false, rows);
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {inputShapes[0].add(embeddingSize)};
    }

    /** {@inheritDoc} */
    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        os.write(version);
        saveMetadata(os);
        HeldParameters.save(this, os);
    }

    /** {@inheritDoc} */
    @Override
    protected void saveMetadata(DataOutputStream os) throws IOException {
        saveInputShapes(os);
        os.writeInt(SparseFormat.DENSE.getValue());
    }

    /**
     * {@inheritDoc}
     *
     * @throws MalformedModelException if the file is not that of an embedding
     */
    @Override
    public void loadMetadata(byte loadVersion, DataInputStream is)
            throws IOException, MalformedModelException {
        if (loadVersion != VERSION) {
            throw new MalformedModelException(
                    String.format(
                            "%s loads version %d of an embedding, which DJL 0.35 writes, not %d",
                            describe(), VERSION, loadVersion));
        }
        readInputShapes(is);
        is.readInt(); // the format of the gradient, which is dense here
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
            shardingStrategy = Objects.requireNonNull(strategy, "strategy");
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
            Errors.check(
                    vocabularySize > 0 && embeddingSize > 0,
                    "An embedding needs ids and features, not %s x %s",
                    vocabularySize,
                    embeddingSize);
            Preconditions.checkArgument(
                    paddingIndex >= -1 && paddingIndex < vocabularySize,
                    String.format(
                            "The padding index is %d, and the ids of a vocabulary of %d are 0 to"
                                    + " %d",
                            paddingIndex, vocabularySize, vocabularySize - 1));
            Shape shape = new Shape(vocabularySize, embeddingSize);
            Errors.check(
                    !shardingStrategy.isReplicated() && shardingStrategy.axis(shape) == 0,
                    "An embedding cuts axis 0, the vocabulary, and cannot take %s",
                    shardingStrategy);
            return new VocabParallelEmbedding(this);
        }
    }
}
