package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SymbolBlock;
import ai.djl.training.loss.Loss;

import io.djltp.internal.gradient.ParameterUses;
import io.djltp.layout.ForwardPass;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.sharding.ShardingStrategy;

import java.util.List;
import java.util.function.BiFunction;
import java.util.function.Consumer;

/** Runs forward passes on all ranks, and is what their passes share: the network and the loss. */
final class ParallelForward {

    private final Block block;
    private final Loss loss;
    private final ParallelParameters parameters;
    private final RankPool ranks;
    private final ProcessAgreement agreement;
    private final RandomnessCheck randomness;
    private final ParameterUses uses;
    private final boolean scripted; // TorchScript takes arrays of the engine only

    /**
     * Creates the passes of a trainer.
     *
     * @param block the network
     * @param loss the loss
     * @param parameters what the ranks hold of the network
     * @param ranks the ranks
     * @param agreement compares the batches of the processes
     * @param randomness explains random numbers that ranks cannot draw alike
     */
    ParallelForward(
            Block block,
            Loss loss,
            ParallelParameters parameters,
            RankPool ranks,
            ProcessAgreement agreement,
            RandomnessCheck randomness) {
        this.block = block;
        this.loss = loss;
        this.parameters = parameters;
        this.ranks = ranks;
        this.agreement = agreement;
        this.randomness = randomness;
        uses = new ParameterUses(parameters);
        scripted = hasScript(block);
    }

    /** A script keeps its weights in a form that no gradient can pass, as DJL loads it. */
    private static boolean hasScript(Block block) {
        return block instanceof SymbolBlock
                || block.getChildren().values().stream().anyMatch(ParallelForward::hasScript);
    }

    /**
     * Runs a pass.
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
            agreement.sayFrozen();
            comparison = agreement.compareBatch(data, labels);
        } else {
            agreement.compareEvaluated(data);
        }
        List<RankPass> passes =
                ranks.runOrRefuse(
                        context -> {
                            RankPass pass = new RankPass(this, context, manager);
                            pass.forward(data, labels, training);
                            return pass;
                        });
        for (RankPass pass : passes) {
            if (pass.getRefusal() != null) { // of one rank: the others have computed in vain
                passes.forEach(RankPass::closeScopes);
                throw pass.getRefusal();
            }
        }
        ParallelOutput output = new ParallelOutput(ranks, manager, passes, training);
        if (labels != null) {
            output.setLoss(labels);
        }
        output.setComparison(comparison);
        return output;
    }

    boolean isDistributed() {
        return ranks.isDistributed();
    }

    Loss getLoss() {
        return loss;
    }

    ParameterUses getUses() {
        return uses;
    }

    /** Says what a pass of a rank is for. */
    void begin(ParallelContext context, boolean training) {
        ForwardPass pass = context.getPass();
        boolean several = ranks.size() > 1;
        pass.setPurpose(training, uses::foreign, parameter -> shardOf(context, parameter), several);
        pass.setPlacing(!scripted);
    }

    private ForwardPass.Shard shardOf(ParallelContext context, Parameter parameter) {
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        Shape shape = parameter.getShape();
        int size = context.getTensorGroup().getSize();
        return strategy == null || strategy.isReplicated()
                ? null
                : new ForwardPass.Shard(strategy.cut(shape, size), strategy.axis(shape));
    }

    /** Computes the network on a rank. */
    NDList compute(ParallelContext context, NDList input, NDList labels, boolean training) {
        RankParameterStore store = parameters.getStore(context);
        ForwardPass pass = context.getPass();
        try {
            NDList placed = pass.place(input, false);
            return labels == null
                    ? block.forward(store, placed, training)
                    : block.forward(store, placed, pass.place(labels, placed), null);
        } catch (RuntimeException e) {
            throw pass.explain(randomness.explained(e));
        }
    }

    /** Computes the loss on a rank. */
    NDArray evaluateLoss(NDList labels, NDList predictions) {
        String name = "The loss " + loss.getName();
        NDArray value = randomness.withoutDraws(name, () -> loss.evaluate(labels, predictions));
        if (value == null) {
            throw new IllegalArgumentException(
                    name
                            + " has returned null: let its evaluate(labels, predictions) return a"
                            + " scalar, which is computed from the predictions");
        }
        return value;
    }

    /** Computes an evaluator on a rank. */
    NDArray evaluate(
            BiFunction<NDList, NDList, NDArray> evaluator, NDList labels, NDList predictions) {
        return randomness.withoutDraws("An evaluator", () -> evaluator.apply(labels, predictions));
    }
}
