package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;

import io.djltp.bridge.Autograd;
import io.djltp.mesh.ParallelContext;
import io.djltp.mesh.ParallelMode;
import io.djltp.mesh.RankPool;
import io.djltp.sharding.RankParameterStore;

import java.util.List;

/** A forward pass on all ranks. */
@SuppressWarnings("try") // a scope is used by being open
final class ParallelForward {

    private final Block block;
    private final ParallelParameters parameters;
    private final RankPool ranks;
    private final LossOnRanks lossOnRanks;
    private final RandomnessCheck randomness;

    ParallelForward(
            Block block,
            ParallelParameters parameters,
            RankPool ranks,
            LossOnRanks lossOnRanks,
            RandomnessCheck randomness) {
        this.block = block;
        this.parameters = parameters;
        this.ranks = ranks;
        this.lossOnRanks = lossOnRanks;
        this.randomness = randomness;
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
        List<RankOutput> parts =
                ranks.run(context -> forward(context, manager, data, labels, training));
        ParallelOutput output = new ParallelOutput(ranks, manager, lossOnRanks, parts, training);
        if (labels != null) {
            output.setLoss(labels);
        }
        return output;
    }

    private RankOutput forward(
            ParallelContext context,
            NDManager manager,
            NDList data,
            NDList labels,
            boolean training) {
        RankParameterStore store = parameters.getStore(context);
        boolean cut = context.getMode() != ParallelMode.TENSOR && context.getSize() > 1;
        RankOutput part = new RankOutput();
        NDManager scope = part.newScope(manager, context);
        try (Autograd.GradMode recording = Autograd.gradMode(training)) {
            context.beginForward(data.head().getShape().get(0), cut);
            NDList input = BatchPart.of(data, context, cut, scope);
            NDList output;
            if (labels == null) {
                output = block.forward(store, input, training);
            } else {
                boolean cutLabels = context.getMode() == ParallelMode.DATA && cut;
                NDList own = BatchPart.of(labels, context, cutLabels, scope);
                output = block.forward(store, input, own, null);
            }
            for (NDArray array : output) {
                array.attach(manager);
            }
            part.setArrays(output, context);
            if (labels != null) {
                lossOnRanks.evaluate(context, part, labels, manager);
            }
            return part;
        } catch (RuntimeException e) {
            throw randomness.explained(e);
        } finally {
            context.endForward();
            if (!training) {
                part.closeScopes();
            }
        }
    }
}
