package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;
import ai.djl.util.Pair;

import io.djltp.collective.CollectiveCounts;
import io.djltp.parameters.SlicedInitializer;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;
import io.djltp.torch.Autograd;

import java.lang.reflect.Proxy;
import java.util.List;

/**
 * A {@link Predictor} whose network is computed by several ranks, each with its shards of the
 * weights.
 *
 * <pre>{@code
 * ParallelConfig ranks =
 *         ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(4).build();
 * try (Predictor<I, O> predictor = new ParallelPredictor<>(model, translator, ranks)) {
 *     O output = predictor.predict(input);
 * }
 * }</pre>
 *
 * <p>The translator sees the whole output, as with DJL's predictor; only layers that leave their
 * output cut over the ranks cannot be the last ones. The first prediction hands out the weights, of
 * which the model then holds no second copy, and checks that ranks can compute the network: it
 * takes longer. No state of a training is made. Closing it puts the weights back into the model.
 *
 * <p>In a job of several processes, all of them predict the same inputs.
 *
 * @param <I> the input
 * @param <O> the output
 */
public class ParallelPredictor<I, O> extends Predictor<I, O> {

    private final ParallelTrainer ranks;
    private volatile boolean closed;

    /**
     * Creates a predictor and starts its ranks.
     *
     * @param model the model, with values for all of its parameters
     * @param translator what goes in and comes out
     * @param config the ranks
     * @throws IllegalStateException if a parameter has no value, or an open {@code ParallelTrainer}
     *     trains the model
     * @throws IllegalArgumentException if there are too few GPUs for the ranks
     */
    @SuppressWarnings("this-escape") // closed again if the ranks do not start
    public ParallelPredictor(Model model, Translator<I, O> translator, ParallelConfig config) {
        this(config.onDevices(new Device[] {model.getNDManager().getDevice()}), model, translator);
    }

    private ParallelPredictor(ParallelConfig config, Model model, Translator<I, O> translator) {
        super(model, translator, config.getDevices().get(0), false);
        try {
            checkValues(model);
            // a rate of 0: there is no step, and plain SGD keeps no state
            Optimizer unused = Optimizer.sgd().setLearningRateTracker(Tracker.fixed(0)).build();
            ranks =
                    new ParallelTrainer(
                            model,
                            new DefaultTrainingConfig(Loss.l2Loss()).optOptimizer(unused),
                            config);
        } catch (RuntimeException | Error e) {
            super.close(); // nobody else has it
            throw e;
        }
    }

    private static void checkValues(Model model) {
        for (Pair<String, Parameter> named : model.getBlock().getParameters()) {
            boolean stored = named.getValue().getInitializer() instanceof SlicedInitializer;
            if (!named.getValue().isInitialized() && !stored) {
                throw new IllegalStateException(
                        "The parameter "
                                + named.getKey()
                                + " has no value to predict with: load or train the model first");
            }
        }
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalStateException if the predictor is closed, or another thread closes it
     */
    @Override
    public List<O> batchPredict(List<I> inputs) throws TranslateException {
        if (closed) {
            throw new IllegalStateException(
                    "The ParallelPredictor is closed, and its ranks with it: make a new one, which"
                            + " takes the weights that the model has again");
        }
        return super.batchPredict(inputs);
    }

    /** {@inheritDoc} */
    @Override
    protected NDList predictInternal(TranslatorContext ctx, NDList input) {
        if (input.isEmpty()) {
            return new NDList(); // as DJL's does
        }
        NDList own = new NDList(); // what the pass leaves behind ends with the context
        for (NDArray array : input) {
            NDArray view = Autograd.detach(array, ctx.getNDManager());
            view.setName(array.getName());
            own.add(view);
        }
        NDList output = new NDList();
        for (NDArray array : evaluate(own)) {
            boolean standIn = Proxy.isProxyClass(array.getClass()); // is made whole, or refuses
            NDArray whole = standIn ? array.duplicate() : array;
            whole.attach(input.head().getManager()); // where DJL's outputs are
            output.add(whole);
        }
        return output;
    }

    private NDList evaluate(NDList input) {
        try {
            return ranks.evaluate(input);
        } catch (RankFailedException | IllegalStateException e) {
            if (!closed) {
                throw e;
            }
            throw new IllegalStateException(
                    "The ParallelPredictor was closed by another thread during this prediction", e);
        }
    }

    /**
     * Returns how many collective operations rank 0 has taken part in.
     *
     * @return a snapshot of the counts
     */
    public CollectiveCounts getCollectiveCounts() {
        return ranks.getCollectiveCounts();
    }

    /**
     * {@inheritDoc}
     *
     * <p>The model then holds its weights again, whole.
     */
    @Override
    public void close() {
        closed = true;
        try {
            ranks.close();
        } finally {
            super.close();
        }
    }
}
