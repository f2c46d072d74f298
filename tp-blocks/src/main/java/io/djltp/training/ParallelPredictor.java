package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Parameter;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;
import ai.djl.util.Pair;

import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.Errors;
import io.djltp.internal.parameters.SlicedInitializer;
import io.djltp.rank.ParallelConfig;

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
 * <p>The translator sees the whole output, as with DJL's predictor; an output that the last layer
 * leaves cut over the ranks by class is gathered. The first prediction hands out the weights, of
 * which the model then holds no second copy, and checks that ranks can compute the network: it
 * takes longer. No state of a training is made. Closing it puts the weights back into the model.
 *
 * <p>A model has one {@code ParallelPredictor} at a time. Threads share it: their predictions
 * follow each other.
 *
 * <p>In a job of several processes, all of them predict the same inputs.
 *
 * @param <I> the input
 * @param <O> the output
 */
public class ParallelPredictor<I, O> extends Predictor<I, O> {

    private final ParallelInference ranks;
    private volatile boolean closed;

    /**
     * Creates a predictor and starts its ranks.
     *
     * @param model the model, with values for all of its parameters
     * @param translator what goes in and comes out
     * @param config the ranks
     * @throws IllegalStateException if a parameter has no value, or an open {@code ParallelTrainer}
     *     or {@code ParallelPredictor} of the model holds it
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
            ranks = new ParallelInference(model, config);
        } catch (RuntimeException | Error e) {
            super.close(); // nobody else has it
            throw e;
        }
    }

    private static void checkValues(Model model) {
        for (Pair<String, Parameter> named : model.getBlock().getParameters()) {
            boolean stored = named.getValue().getInitializer() instanceof SlicedInitializer;
            Errors.checkState(
                    named.getValue().isInitialized() || stored,
                    "The parameter %s has no value to predict with: load or train the model first",
                    named.getKey());
        }
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalStateException if the predictor or the model is closed, or another thread
     *     closes the predictor
     */
    @Override
    public List<O> batchPredict(List<I> inputs) throws TranslateException {
        Errors.checkState(
                !closed,
                "The ParallelPredictor is closed, and its ranks with it: make a new one, which"
                        + " takes the weights that the model has again");
        Errors.checkState(
                manager.isOpen(),
                "The model %s was closed while its ParallelPredictor was open: close the"
                        + " predictor before the model",
                model.getName());
        return super.batchPredict(inputs);
    }

    /** {@inheritDoc} */
    @Override
    protected NDList predictInternal(TranslatorContext ctx, NDList input) {
        if (input.isEmpty()) {
            return new NDList(); // as DJL's does
        }
        NDList output = ranks.forward(input, ctx.getNDManager());
        output.attach(input.head().getManager()); // where DJL's outputs are
        return output;
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
