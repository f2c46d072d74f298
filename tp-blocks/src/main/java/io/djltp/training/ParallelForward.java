package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.SymbolBlock;
import ai.djl.nn.norm.BatchNorm;

import io.djltp.collective.TrafficTable.Direction;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.JavaMemory;
import io.djltp.layout.ForwardPass;
import io.djltp.parameters.BlockWalk;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.parameters.ShardedBlock;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.LateRefusal;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.Phase;
import io.djltp.rank.RankPool;
import io.djltp.sharding.ShardingStrategy;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;

/** A forward pass on all ranks. */
@SuppressWarnings("try") // a scope is used by being open
final class ParallelForward {

    private static final int SHAPES = 64; // of which the axis of the batch is checked

    private final Block block;
    private final ParallelParameters parameters;
    private final RankPool ranks;
    private final LossOnRanks lossOnRanks;
    private final RandomnessCheck randomness;
    private final BatchComparison batches;
    private final NormalizedRows normalized;
    private final boolean scripted; // TorchScript takes arrays of the engine only
    private final Set<List<Shape>> checked = new HashSet<>();

    ParallelForward(
            Block block,
            ParallelParameters parameters,
            RankPool ranks,
            LossOnRanks lossOnRanks,
            RandomnessCheck randomness,
            BatchComparison batches) {
        this.block = block;
        this.parameters = parameters;
        this.ranks = ranks;
        this.lossOnRanks = lossOnRanks;
        this.randomness = randomness;
        this.batches = batches;
        ParallelContext first = ranks.getContext(0);
        boolean overlaid = first.getMesh().isOverlaid();
        normalized = new NormalizedRows(block, first.getDataGroup().getSize(), overlaid);
        scripted = hasScript(block);
    }

    /** A script keeps its weights in a form that no gradient can pass, as DJL loads it. */
    private static boolean hasScript(Block block) {
        return block instanceof SymbolBlock
                || block.getChildren().values().stream().anyMatch(ParallelForward::hasScript);
    }

    /**
     * Runs the pass.
     *
     * @param manager the manager of what is kept of it
     * @param data the whole batch
     * @param labels the labels of the whole batch, or {@code null} if the loss comes later
     * @param training whether a graph is recorded
     * @return the output
     */
    ParallelOutput run(NDManager manager, NDList data, NDList labels, boolean training) {
        Consumer<NDList> comparison = others -> {};
        if (training) {
            comparison = batches.compare(data, labels);
            normalized.check(data);
        } else {
            batches.compareEvaluated(data);
        }
        // the first loss of a shape is computed when its outputs have been looked at
        List<Shape> shapes = List.of(data.getShapes());
        boolean fresh = checked.size() < SHAPES && !checked.contains(shapes);
        List<RankOutput> parts =
                ranks.runOrRefuse(
                        context -> forward(context, manager, data, labels, training, fresh));
        for (RankOutput part : parts) {
            if (part.refusal != null) { // of one rank: the others have computed in vain
                parts.forEach(RankOutput::closeScopes);
                throw part.refusal;
            }
        }
        InPlaceCheck.check(ranks, parts);
        if (fresh) {
            BatchAxis.check(block, data, parts);
            checked.add(shapes); // else the next call is to throw, too
        }
        ParallelOutput output = new ParallelOutput(ranks, manager, lossOnRanks, parts, training);
        if (labels != null && fresh) {
            output.getLoss(labels);
        } else if (labels != null) {
            output.setLoss(labels);
        }
        output.setComparison(comparison);
        return output;
    }

    private RankOutput forward(
            ParallelContext context,
            NDManager manager,
            NDList data,
            NDList labels,
            boolean training,
            boolean fresh) {
        boolean cut = context.getMesh().isCut(DeviceMesh.DATA);
        RankOutput part = new RankOutput(manager, context);
        NDManager scope = part.newScope();
        long rows = BatchPart.rowsOf(data);
        LateRefusal late = ranks.isDistributed() ? null : LateRefusal.begin();
        try (Autograd.GradMode recording = Autograd.gradMode(training);
                Phase phase = Phase.begin(context, Direction.FORWARD);
                JavaMemory memory = JavaMemory.keep(scope)) {
            memory.add(data);
            long own = BatchPart.rows(rows, context, cut).length();
            context.beginForward(rows, own, cut, scope);
            context.getPass()
                    .setPurpose(
                            training,
                            lossOnRanks.getUses()::foreign,
                            parameter -> shardOf(context, parameter));
            context.getPass().setPlacing(!scripted);
            NDList input = BatchPart.of(data, context, cut ? rows : 0, scope);
            part.setArrays(compute(context, part, input, labels, training, scope), context);
            if (labels != null && !fresh) {
                lossOnRanks.evaluate(context, part, labels);
            }
            return part;
        } finally {
            context.endForward();
            RuntimeException before = late == null ? null : late.end();
            part.refusal = before == null ? part.refusal : before;
            if (!training) {
                part.closeScopes();
            }
        }
    }

    /**
     * Looks at what was computed. A rank with other rows may find something that the others do not:
     * they have computed all that they needed it for.
     */
    private ForwardPass.Shard shardOf(ParallelContext context, Parameter parameter) {
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        Shape shape = parameter.getShape();
        int ranks = context.getTensorGroup().getSize();
        return strategy == null || strategy.isReplicated()
                ? null
                : new ForwardPass.Shard(strategy.cut(shape, ranks), strategy.axis(shape));
    }

    private NDList compute(
            ParallelContext context,
            RankOutput part,
            NDList input,
            NDList labels,
            boolean training,
            NDManager scope) {
        RankParameterStore store = parameters.getStore(context);
        NDList own = labels == null ? null : ownLabels(context, labels, scope);
        InPlaceCheck inputs = InPlaceCheck.begin("input", input);
        InPlaceCheck targets = InPlaceCheck.begin("label", own == null ? new NDList() : own);
        try {
            NDList placed = context.getPass().place(input, false);
            NDList output =
                    own == null
                            ? block.forward(store, placed, training)
                            : block.forward(
                                    store, placed, context.getPass().place(own, placed), null);
            part.inPlace = inputs.refusal() == null ? targets.refusal() : inputs.refusal();
            return output;
        } catch (RuntimeException e) {
            RuntimeException first = ranks.size() > 1 ? inputs.explained(e) : e;
            long rows = context.getPass().getRows();
            RuntimeException explained =
                    NormalizedRows.explained(first, rows, context.getPass().getGlobalRows());
            throw context.getPass().explain(randomness.explained(explained));
        }
    }

    /** Returns the labels as a block may take them that is told of them in training. */
    private static NDList ownLabels(ParallelContext context, NDList labels, NDManager scope) {
        long rows = context.getPass().getGlobalRows();
        DeviceMesh mesh = context.getMesh();
        boolean cut = mesh.isCut(DeviceMesh.DATA) && !mesh.isOverlaid();
        cut &= BatchPart.canCut(labels, rows);
        return BatchPart.of(labels, context, cut ? rows : 0, scope);
    }

    /**
     * Checks that axis 0 of an output is the batch, where the batch is cut over the ranks. A length
     * alone does not say it: two ranks with 4 of 8 rows have an output of length 4 if it is the
     * rows, and if it is the features of a mean over the rows. What the block says of a batch of
     * another size does.
     */
    private static final class BatchAxis {

        private BatchAxis() {}

        /**
         * Checks the outputs of a pass.
         *
         * @param block the network
         * @param data the whole batch
         * @param parts the outputs of the ranks of this process
         * @throws IllegalArgumentException if axis 0 of an output is not known to be the batch
         */
        static void check(Block block, NDList data, List<RankOutput> parts) {
            RankOutput part = parts.get(0);
            ForwardPass pass = part.getPass();
            if (pass.getRows() == 0) {
                return;
            }
            Shape[] own = null;
            Shape[] whole = null;
            for (int i = 0; i < part.arrays.size(); i++) {
                if (part.getRegion(i).isRowsCut()) {
                    own = own == null ? shapes(block, data, pass.getRows()) : own;
                    whole = whole == null ? shapes(block, data, pass.getGlobalRows()) : whole;
                    check(pass, i, part.getWholeFeatures(i), at(own, i), at(whole, i));
                }
            }
        }

        private static void check(
                ForwardPass pass, int index, Shape actual, Shape own, Shape whole) {
            long rows = pass.getRows();
            long length = actual.dimension() == 0 ? 0 : actual.get(0);
            boolean fits = length > 0 && length % rows == 0;
            if (fits && actual.equals(own) && whole != null && whole.dimension() > 0) {
                // the block knows its shapes
                fits = whole.get(0) == length / rows * pass.getGlobalRows();
            } else if (fits) {
                fits = length == rows;
            }
            if (!fits) {
                throw new IllegalArgumentException(
                        "Output "
                                + index
                                + " of the network is "
                                + actual
                                + " on a rank with "
                                + rows
                                + " of the "
                                + pass.getGlobalRows()
                                + " rows of the batch. Where the batch is cut over the ranks, axis"
                                + " 0 of an output must be its rows, or the ranks' outputs cannot"
                                + " be put together: use TENSOR mode for this network. If a row"
                                + " becomes several, such as words, the block's getOutputShapes"
                                + " must say so");
            }
        }

        private static Shape at(Shape[] shapes, int index) {
            return index < shapes.length ? shapes[index] : null;
        }

        /** Returns the shapes of the outputs as the block knows them, or none. */
        private static Shape[] shapes(Block block, NDList data, long rows) {
            Shape[] inputs = new Shape[data.size()];
            for (int i = 0; i < inputs.length; i++) {
                NDArray array = data.get(i);
                inputs[i] = new Shape(rows).addAll(array.getShape().slice(1));
            }
            try {
                return block.getOutputShapes(inputs);
            } catch (RuntimeException e) {
                return new Shape[0]; // a block of the user's own may not know
            }
        }
    }

    /**
     * Refuses a batch of which a rank would have one row, where DJL's batch normalization takes the
     * variance of the rank's rows. Libtorch has none of one value and throws, on that rank alone:
     * the others would wait for it, and the trainer be lost.
     */
    private static final class NormalizedRows {

        private static final String FEW_ROWS =
                "leave an incomplete last batch out, setSampling(rows, shuffle, true), or choose a"
                        + " batch size that leaves two rows";

        private final Block block;
        private final int ranks;
        private final boolean overlaid;

        /**
         * Creates the check.
         *
         * @param block the network
         * @param ranks the number of ranks that share the rows
         * @param overlaid whether rows are gathered before the first layer that is cut
         */
        NormalizedRows(Block block, int ranks, boolean overlaid) {
            this.block = block;
            this.ranks = ranks;
            this.overlaid = overlaid;
        }

        /**
         * Checks a batch, before a rank computes with it.
         *
         * @param data the batch to be trained on
         * @throws IllegalArgumentException if a batch normalization would get one value of a
         *     channel
         */
        void check(NDList data) {
            long rows = BatchPart.rowsOf(data);
            if (ranks == 1 || rows >= 2L * ranks) {
                return;
            }
            List<String> found = new ArrayList<>();
            Set<Block> computed = ofRows();
            BlockWalk.of(
                    block,
                    (each, path, certain) -> {
                        if (certain && computed.contains(each) && hasOneValue(each, data)) {
                            found.add(path.isEmpty() ? "BatchNorm" : path);
                        }
                    });
            if (!found.isEmpty()) {
                throw new IllegalArgumentException(
                        "The batch has "
                                + rows
                                + (rows == 1 ? " row" : " rows")
                                + " for "
                                + ranks
                                + " ranks, each of which normalizes its own, and a batch"
                                + " normalization cannot train on one value of a channel: "
                                + String.join(", ", found)
                                + ". "
                                + remedy(true, rows));
            }
        }

        /** Returns the batch normalizations that surely compute with a rank's rows. */
        private Set<Block> ofRows() {
            if (!overlaid) {
                return find(block, BatchNorm.class);
            }
            Set<Block> found = new HashSet<>();
            if (block instanceof SequentialBlock) {
                for (Block child : block.getChildren().values()) {
                    if (!find(child, ShardedBlock.class).isEmpty()) {
                        break; // which gathers them
                    }
                    found.addAll(find(child, BatchNorm.class));
                }
            }
            return found;
        }

        private static Set<Block> find(Block network, Class<?> type) {
            Set<Block> found = new HashSet<>();
            BlockWalk.of(
                    network,
                    (each, path, certain) -> {
                        if (type.isInstance(each)) {
                            found.add(each);
                        }
                    });
            return found;
        }

        /** Returns whether a block gets one value of a channel for each row, as far as is known. */
        private boolean hasOneValue(Block norm, NDList data) {
            if (!block.isInitialized() || !norm.isInitialized() || norm.describeInput().isEmpty()) {
                return false;
            }
            List<Shape> known = block.describeInput().values();
            Shape input = norm.describeInput().get(0).getValue();
            boolean same = known.size() == data.size();
            same = same && Arrays.stream(input.getShape()).allMatch(length -> length > 0);
            for (int i = 0; same && i < known.size(); i++) {
                NDArray array = data.get(i);
                int axes = array.getShape().dimension();
                same = axes > 0 && known.get(i).dimension() == axes;
                same = same && array.getShape().slice(1).equals(known.get(i).slice(1));
            }
            return same && input.size() == known.get(0).get(0) * input.get(1);
        }

        /**
         * Returns what can be done. A batch of one row has no statistics, whoever takes them.
         *
         * @param cut whether the rows of the batch are cut over the ranks
         * @param rows the rows of the whole batch
         */
        private static String remedy(boolean cut, long rows) {
            if (!cut || rows < 2) {
                return "What helps is to " + FEW_ROWS;
            }
            return "io.djltp.nn.SyncBatchNorm (in a plan, Style.batchNorm()) takes the statistics"
                       + " of the whole batch. Else "
                    + FEW_ROWS
                    + " for each rank, or use TENSOR mode";
        }

        /**
         * Returns what to throw for an exception of a rank, if the check could not know.
         *
         * @param thrown the exception
         * @param rows the rows of the rank
         * @param all the rows of the whole batch
         * @return an exception with the remedy, or the same if it is about something else
         */
        static RuntimeException explained(RuntimeException thrown, long rows, long all) {
            boolean cut = rows != all;
            return String.valueOf(thrown.getMessage()).contains("more than 1 value per channel")
                    ? new IllegalArgumentException(
                            "A batch normalization gets one value of a channel to train on, of the"
                                + " rows"
                                    + (cut ? " of its rank, " : " of the batch, ")
                                    + rows
                                    + ": "
                                    + thrown.getMessage()
                                    + ". "
                                    + remedy(cut, all),
                            thrown)
                    : thrown;
        }
    }
}
