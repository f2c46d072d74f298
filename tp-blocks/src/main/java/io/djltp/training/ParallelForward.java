package io.djltp.training;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.SymbolBlock;

import io.djltp.collective.Direction;
import io.djltp.gradient.GradientFlow;
import io.djltp.layout.PartAnalysis;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.LateRefusal;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.Phase;
import io.djltp.rank.RankPool;
import io.djltp.torch.Autograd;
import io.djltp.torch.JavaMemory;

import java.util.List;
import java.util.function.Consumer;

/** A forward pass on all ranks. */
@SuppressWarnings("try") // a scope is used by being open
final class ParallelForward {

    private final Block block;
    private final ParallelParameters parameters;
    private final RankPool ranks;
    private final LossOnRanks lossOnRanks;
    private final RandomnessCheck randomness;
    private final BatchComparison batches;
    private final NormalizedRows normalized;
    private final boolean watchable;

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
        watchable = ranks.getWorldSize() > 1 && !hasScript(block);
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
        GradientFlow flow = lossOnRanks.getFlow();
        boolean watched = watchable && flow.getWatched().isNew(training, data);
        List<RankOutput> parts =
                ranks.runOrRefuse(
                        context -> forward(context, manager, data, labels, training, watched));
        for (RankOutput part : parts) {
            if (part.refusal != null) { // of one rank: the others have computed in vain
                parts.forEach(RankOutput::closeScopes);
                throw part.refusal;
            }
        }
        InPlaceCheck.check(ranks, parts);
        if (watched) {
            BatchAxis.check(block, data, parts);
        }
        ParallelOutput output = new ParallelOutput(ranks, manager, lossOnRanks, parts, training);
        if (labels != null && watched) {
            output.getLoss(labels);
        } else if (labels != null) {
            output.setLoss(labels);
        }
        if (watched) {
            flow.getWatched().add(training, data);
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
            boolean watched) {
        boolean cut = context.getMesh().isCut(DeviceMesh.DATA);
        RankOutput part = new RankOutput(manager, context);
        NDManager scope = part.newScope();
        long rows = BatchPart.rowsOf(data);
        LateRefusal late = ranks.isDistributed() ? null : LateRefusal.begin();
        try (Autograd.GradMode recording = Autograd.gradMode(training || watched);
                Phase phase = Phase.begin(context, Direction.FORWARD);
                JavaMemory memory = JavaMemory.keep(scope)) {
            memory.add(data);
            long own = BatchPart.rows(rows, context, cut).length();
            context.beginForward(rows, own, cut, scope);
            PartAnalysis parts = lossOnRanks.getFlow().getPartAnalysis(context);
            context.getPass().setPurpose(training, watched, parts);
            NDList input = BatchPart.of(data, context, cut ? rows : 0, scope);
            if (watched && cut) {
                input = context.getPass().watchRows(input);
            }
            part.setArrays(compute(context, part, input, labels, training, scope), context);
            if (watched) {
                check(context, part);
            } else if (labels != null) {
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
    private void check(ParallelContext context, RankOutput part) {
        try {
            part.check(context, lossOnRanks.getFlow());
        } catch (IllegalArgumentException e) {
            if (ranks.isDistributed()) {
                throw e;
            }
            part.refusal = e;
        }
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
            NDList output =
                    own == null
                            ? block.forward(store, input, training)
                            : block.forward(store, input, own, null);
            part.inPlace = inputs.refusal() == null ? targets.refusal() : inputs.refusal();
            return output;
        } catch (RuntimeException e) {
            RuntimeException first = ranks.size() > 1 ? inputs.explained(e) : e;
            long rows = context.getPass().getRows();
            RuntimeException explained =
                    NormalizedRows.explained(first, rows, context.getPass().getGlobalRows());
            throw context.getPass().explain(randomness.explained(explained), true);
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
}
