package io.djltp.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.norm.Dropout;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.layout.TokenCut;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.parameters.StatefulBlock;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.torch.DropoutMask;

import org.jspecify.annotations.Nullable;

import java.io.DataInputStream;
import java.io.IOException;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;

/**
 * {@link Dropout} in a region of any kind: in training it sets elements to 0 with the probability
 * {@code rate}, and multiplies the others by 1 / (1 - rate).
 *
 * <ul>
 *   <li>input: any shape
 *   <li>output: the same shape
 * </ul>
 *
 * <p>The mask follows from a seed, the number of the call, and the place of an element in the whole
 * array over all ranks. Ranks that compute alike have the same mask; a rank that has some rows of
 * the batch, some of the tokens, or a slice of the features, has those of the mask. A training
 * therefore does not depend on the number of ranks, and is the same when it is run again with the
 * same seed. The rows are axis 0, and the features that are cut the last axis, or the last axes if
 * they are divided to heads; the block throws {@code IllegalArgumentException} if they are not.
 * Collectives: none.
 *
 * <p>With an ordinary parameter store, that of DJL's own trainer or of a predictor, the block is
 * DJL's {@code Dropout}, and it saves and loads what that does.
 */
public final class ParallelDropout extends AbstractBlock implements StatefulBlock {

    private static final byte VERSION = 2; // that of Dropout

    private static final String MASKS = "masks";

    private final float rate;
    private final @Nullable Long seed; // the user's
    private final Map<ParallelContext, Stream> streams =
            Collections.synchronizedMap(new WeakHashMap<>());
    private volatile @Nullable State start; // null: the trainer gives a seed
    private volatile @Nullable Stream first; // of the first rank of the process

    private ParallelDropout(Builder builder) {
        super(VERSION);
        rate = builder.rate;
        seed = builder.seed;
        start = seed == null ? null : new State(seed, 0);
    }

    /**
     * What the next masks follow from.
     *
     * @param seed the seed
     * @param calls the number of masks that were made with it
     */
    record State(long seed, long calls) {}

    /** The masks of a rank, one after the other. */
    private static final class Stream {

        private final long seed;
        private long calls;

        Stream(State start) {
            seed = start.seed();
            calls = start.calls();
        }

        long nextKey() {
            return DropoutMask.key(seed, calls++);
        }
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        NDArray input = inputs.singletonOrThrow();
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context == null) {
            return Dropout.dropout(input, rate, training);
        }
        ShardedLayout layout = context.getPass().layoutOf(input);
        if (layout != null && layout.head() != null) {
            throw new IllegalStateException(
                    "Dropout after a fused head, whose outputs are never"
                            + " computed: put it before that layer");
        }
        if (!training || rate == 0) {
            return new NDList(input);
        }
        long key = context.getPass().keyOf(() -> streamOf(context).nextKey());
        Region region = context.getPass().regionOf(input);
        NDArray own = DelegatedArray.unwrap(input);
        DropoutMask.Part part = MaskPart.of(context, region, input, layout);
        if (part == null) { // another mask on each rank, but where several compute alike
            boolean alike =
                    region.features() == Region.Features.REPLICATED && !region.isTokensCut();
            Communicator group = alike ? context.getDataGroup() : context.getWorld();
            key = DropoutMask.key(key, group.getRank());
            part = DropoutMask.Part.from(0);
        }
        try (NDArray mask = DropoutMask.of(own, key, rate, part)) {
            NDArray output = input.mul(mask);
            return new NDList(output);
        }
    }

    private Stream streamOf(ParallelContext context) {
        Stream stream =
                streams.computeIfAbsent(
                        context,
                        rank ->
                                new Stream(
                                        start == null
                                                ? new State(rank.getRandom().next(), 0)
                                                : start));
        if (context.getLocalIndex() == 0) {
            first = stream;
        }
        return stream;
    }

    /**
     * Returns the probability with which an element is set to 0.
     *
     * @return the rate
     */
    public float getRate() {
        return rate;
    }

    /**
     * Returns what the next masks follow from. To be called while no step is running.
     *
     * @return the state, or {@code null} if there is no seed before the first training step
     */
    @Nullable State getState() {
        Stream stream = first;
        return stream == null ? start : new State(stream.seed, stream.calls);
    }

    /**
     * Goes on with the masks of another training. To be called while no step is running, on all
     * processes alike.
     *
     * @param state what {@link #getState()} returned there
     */
    void setState(@Nullable State state) {
        start = state;
        first = null;
        streams.clear();
    }

    /** {@inheritDoc} What {@link #getState()} returns, int64 [2], once there is a seed. */
    @Override
    public Map<String, NDArray> getTrainingState(NDManager manager) {
        State state = getState();
        return state == null
                ? Map.of()
                : Map.of(MASKS, manager.create(new long[] {state.seed(), state.calls()}));
    }

    /** {@inheritDoc} */
    @Override
    public void setTrainingState(Map<String, NDArray> state) {
        NDArray masks = state.get(MASKS);
        boolean fits = masks == null ? state.isEmpty() : state.size() == 1 && masks.size() == 2;
        Errors.check(fits, "The state of dropout is \"masks\", two numbers, not %s", state);
        if (masks != null) {
            long[] values = masks.toLongArray();
            setState(new State(values[0], values[1]));
        } else {
            setState(seed == null ? null : new State(seed, 0));
        }
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }

    /** {@inheritDoc} */
    @Override
    public void initializeChildBlocks(NDManager manager, DataType dataType, Shape... inputShapes) {
        setState(getState()); // another trainer goes on where this one ended
    }

    /** {@inheritDoc} */
    @Override
    public void loadMetadata(byte loadVersion, DataInputStream is)
            throws IOException, MalformedModelException {
        if (loadVersion == VERSION) {
            readInputShapes(is);
        } else if (loadVersion != 1) {
            throw new MalformedModelException("Unsupported encoding version: " + loadVersion);
        }
    }

    /**
     * Creates a builder to build a {@code ParallelDropout}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link ParallelDropout}. */
    public static final class Builder {

        private float rate = 0.5f;
        private @Nullable Long seed;

        private Builder() {}

        /**
         * Sets the probability with which an element is set to 0. Default: 0.5.
         *
         * @param rate the probability, from 0 to 1; with 0 the output is the input
         * @return this builder
         */
        public Builder optRate(float rate) {
            this.rate = DropoutMask.checkRate(rate);
            return this;
        }

        /**
         * Sets the seed of the masks. Blocks with one seed have the same masks. Default: a seed for
         * each block that follows from {@code Engine.setRandomSeed}, or rather from the state of
         * libtorch's generator in the process of rank 0 when the trainer is initialized.
         *
         * @param seed the seed
         * @return this builder
         */
        public Builder optSeed(long seed) {
            this.seed = seed;
            return this;
        }

        /**
         * Builds the block.
         *
         * @return the block
         */
        public ParallelDropout build() {
            return new ParallelDropout(this);
        }
    }

    /** Which elements of the whole array over all ranks a rank's are, for a mask of dropout. */
    private static final class MaskPart {

        private MaskPart() {}

        /** Returns the elements, or {@code null} if it is not known which they are. */
        static DropoutMask.@Nullable Part of(
                ParallelContext context,
                Region region,
                NDArray placed,
                @Nullable ShardedLayout layout) {
            NDArray input = DelegatedArray.unwrap(placed);
            checkRows(context.getPass(), placed);
            ShardRange rows = rows(context.getPass(), region, context.getDataGroup().getRank());
            if (rows.length() == 0) {
                return null; // of a row that does not count
            }
            if (region.isTokensCut()) {
                return ofTokens(context, rows, input, context.getPass().tokensOf(placed));
            }
            if (input.size() % rows.length() != 0) {
                return null; // axis 0 is not the batch
            }
            long rowSize = input.size() / rows.length(); // on this rank
            if (!region.isShard()) {
                return DropoutMask.Part.from(rows.start() * rowSize);
            }
            if (layout == null) {
                return null;
            }
            checkLast(context.getPass().endsWithFeatures(placed), input, layout);
            return ofSlice(context, rows.start() * rowSize, input, layout);
        }

        private static DropoutMask.Part ofSlice(
                ParallelContext context, long before, NDArray input, ShardedLayout layout) {
            Cut cut = layout.cut();
            int rank = context.getTensorGroup().getRank();
            long length = cut.getShardLength(rank);
            checkLast(endsWith(input.getShape(), length), input, layout);
            long first = length == 0 ? 0 : before / length * cut.getLength();
            List<ShardRange> places =
                    cut.getRanges(rank).stream().map(range -> range.movedBy(first)).toList();
            return new DropoutMask.Part(places, cut.getLength());
        }

        /**
         * Returns whether the last axes have so many elements together, such as heads of d
         * features.
         */
        private static void checkLast(boolean last, NDArray input, ShardedLayout layout) {
            Errors.check(
                    last,
                    "Dropout of %s, a rank's part of %s features: its mask can be that of the"
                            + " whole only where the features are the last axis, or the last"
                            + " axes, [.., heads, d]. Put the dropout before the reshape or the"
                            + " swapAxes that moves them, or behind that which takes them back",
                    input.getShape(),
                    layout.cut().getLength());
        }

        /** The mask is made for rows that lie one behind the other. */
        private static void checkRows(ForwardPass pass, NDArray input) {
            if (pass.rowAxisOf(input) > 0) {
                throw Errors.argument(
                        "The batch is cut over the ranks, here %s rows, and dropout takes %s,"
                                + " where the rows are not axis 0: its mask would depend on the"
                                + " number of ranks. Put the dropout before the swapAxes or the"
                                + " transpose that moves them, or behind that which takes them"
                                + " back; or use TENSOR mode",
                        pass.getRows(), input.getShape());
            }
        }

        private static boolean endsWith(Shape shape, long length) {
            long size = 1;
            for (int axis = shape.dimension() - 1; axis > 0; axis--) {
                size *= shape.get(axis);
                if (size == length) {
                    return true;
                }
            }
            return length == 0 || shape.dimension() == 1 && shape.get(0) == length;
        }

        /** A rank's tokens lie together, for each index of the axes before theirs. */
        private static DropoutMask.@Nullable Part ofTokens(
                ParallelContext context,
                ShardRange rows,
                NDArray input,
                @Nullable TokenCut tokens) {
            int rank = context.getTensorGroup().getRank();
            Shape shape = input.getShape();
            if (tokens == null || !tokens.fits(shape, rank)) {
                return null;
            }
            long token = shape.slice(tokens.axis() + 1).size(); // elements
            long own = shape.get(tokens.axis());
            long whole = input.size() / own * tokens.cut().getLength(); // of this rank's rows
            if (whole % rows.length() != 0) {
                return null;
            }
            long before = whole / rows.length() * rows.start();
            ShardRange range = tokens.cut().getRange(rank);
            ShardRange place =
                    new ShardRange(before + range.start() * token, range.length() * token);
            return new DropoutMask.Part(List.of(place), tokens.cut().getLength() * token);
        }

        /** Returns the rows of the batch that a rank has; of those that are not cut, one of all. */
        private static ShardRange rows(ForwardPass pass, Region region, int rank) {
            return region.isRowsCut() ? pass.getBatchCut().getRange(rank) : new ShardRange(0, 1);
        }
    }
}
