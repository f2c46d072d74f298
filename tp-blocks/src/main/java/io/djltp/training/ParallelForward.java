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
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.RandomDraws;
import io.djltp.rank.ParallelConfig;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

import java.util.List;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import java.util.function.Supplier;

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
     * @param config the ranks' configuration
     */
    ParallelForward(
            Block block,
            Loss loss,
            ParallelParameters parameters,
            RankPool ranks,
            ProcessAgreement agreement,
            ParallelConfig config) {
        this.block = block;
        this.loss = loss;
        this.parameters = parameters;
        this.ranks = ranks;
        this.agreement = agreement;
        randomness = new RandomnessCheck(config);
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
    ParallelOutput run(NDManager manager, NDList data, @Nullable NDList labels, boolean training) {
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

    private ForwardPass.@Nullable Shard shardOf(ParallelContext context, Parameter parameter) {
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        Shape shape = parameter.getShape();
        int size = context.getTensorGroup().getSize();
        return strategy == null || strategy.isReplicated()
                ? null
                : new ForwardPass.Shard(strategy.cut(shape, size), strategy.axis(shape));
    }

    /** Computes the network on a rank. */
    NDList compute(
            ParallelContext context, NDList input, @Nullable NDList labels, boolean training) {
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

    /**
     * Refuses a network that draws random numbers where all ranks compute the same: the ranks draw
     * from one generator in any order, so that their activations, and with them the replicas of the
     * parameters, would differ.
     *
     * <p>{@link RandomDraws} lets the draw itself fail: only execution knows where it is computed.
     *
     * <p>A loss may draw in no mode: ranks compute it of their own rows only if it is one that
     * never draws, and else alike.
     */
    private static final class RandomnessCheck {

        private static final String REASON =
                "Where all ranks compute alike they need the same mask or random numbers on all of"
                        + " them, but libtorch's generator, from which DJL draws, is one for the"
                        + " process. ";

        private static final String SWITCH =
                " ParallelConfig.builder().optRandomCheck(false) switches this check off.";

        private static final String REMEDY =
                " Use io.djltp.nn.ParallelDropout, or a rate of 0, or move it into the data-parallel"
                        + " body (DATA mode, or MIXED mode before the layer with"
                        + " optBatchShardedInput(true))."
                        + SWITCH;

        private final ParallelConfig config;

        RandomnessCheck(ParallelConfig config) {
            this.config = config;
        }

        /**
         * Returns what to throw for an exception of a rank's forward pass.
         *
         * @param thrown the exception
         * @return the exception, or one that says who drew where and what to do
         */
        RuntimeException explained(RuntimeException thrown) {
            if (!RandomDraws.isRefusal(thrown)) {
                return thrown;
            }
            return new UnsupportedOperationException(
                    "The network draws random numbers, as Dropout does, in %s. %s%s"
                            .formatted(place(thrown), REASON.trim(), REMEDY),
                    thrown);
        }

        /**
         * Computes a loss or an evaluator.
         *
         * @param name what it is, for the error
         * @param function what computes it
         * @param <T> the type of the result
         * @return the result
         * @throws UnsupportedOperationException if it draws random numbers, and there are other
         *     ranks
         */
        <T> T withoutDraws(String name, Supplier<T> function) {
            if (!config.isRandomCheck() || config.getMesh().getRanks() == 1) {
                return function.get();
            }
            boolean before = RandomDraws.isRefused(); // in a forward pass
            RandomDraws.setRefused(true);
            try {
                return function.get();
            } catch (RuntimeException e) {
                if (!RandomDraws.isRefusal(e)) {
                    throw e;
                }
                throw new UnsupportedOperationException(
                        ("%s draws random numbers, in %s. %sDraw them where the batch is"
                                        + " made, and give them to it as one more array of the"
                                        + " labels.%s")
                                .formatted(name, place(e), REASON, SWITCH),
                        e);
            } finally {
                RandomDraws.setRefused(before);
            }
        }

        /** Names the line that draws, and the first one outside of DJL that has led there. */
        private static String place(Throwable thrown) {
            Throwable cause = thrown;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            StackTraceElement drawing = null;
            for (StackTraceElement frame : cause.getStackTrace()) {
                String name = frame.getClassName();
                if (name.equals(ParallelForward.class.getName())) {
                    break;
                }
                boolean engine =
                        name.startsWith("ai.djl.pytorch.")
                                || name.startsWith("ai.djl.nda")
                                || name.startsWith("io.djltp.internal.layout.")
                                || name.startsWith("java.")
                                || name.startsWith("jdk.");
                if (drawing == null && !engine) {
                    drawing = frame;
                }
                if (drawing != null && !name.startsWith("ai.djl.")) {
                    return drawing == frame ? "" + frame : drawing + ", called by " + frame;
                }
            }
            return "" + (drawing == null ? cause.getStackTrace()[0] : drawing);
        }
    }
}
