package io.djltp.nn.transformer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.torch.DropoutMask;
import io.djltp.nn.ParallelDropout;
import io.djltp.nn.Recompute;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.mlp.ParallelMlp;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** What layers of transformers have in common: parts one after another, each with its residual. */
abstract class AbstractTransformerLayer extends AbstractBlock implements ForecastBlock {

    private static final byte VERSION = 1;

    private final Map<String, Residual> parts = new LinkedHashMap<>();
    private final boolean recompute;

    AbstractTransformerLayer(Builder<?> builder) {
        super(VERSION);
        recompute = builder.recompute;
    }

    /** Adds a part of the layer, with what is around it. */
    final void add(String name, Block part, Builder<?> builder) {
        float rate = builder.dropoutRate;
        ParallelDropout dropout =
                rate == 0 ? null : ParallelDropout.builder().optRate(rate).build();
        Residual residual = new Residual(part, builder.norm().get(), dropout, builder.preNorm);
        addChildBlock(name, part);
        addChildBlock(name + "Norm", residual.norm());
        if (dropout != null) {
            addChildBlock(name + "Dropout", dropout);
        }
        parts.put(name, residual);
    }

    /** Returns the inputs of a part beside the first one, of those of the layer. */
    abstract <T> List<T> othersOf(String part, List<T> inputs);

    /** Checks the number of inputs. */
    void checkInputs(int count) {}

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        checkInputs(inputs.size());
        return new NDList(
                recompute
                        ? Recompute.part(
                                store,
                                inputs,
                                training,
                                "A " + getClass().getSimpleName() + " with optRecompute(true)",
                                arrays -> compute(store, arrays, training))
                        : compute(store, inputs, training));
    }

    private NDArray compute(ParameterStore store, NDList inputs, boolean training) {
        NDArray y = inputs.head();
        for (Map.Entry<String, Residual> part : parts.entrySet()) {
            NDList others = new NDList(othersOf(part.getKey(), inputs));
            y = part.getValue().forward(store, y, training, others);
        }
        return y;
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        return forecast(pass, List.of(input));
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, List<ForecastArray> inputs) {
        return recompute
                ? pass.repeated(() -> forecastParts(pass, inputs))
                : forecastParts(pass, inputs);
    }

    private ForecastArray forecastParts(PassForecast pass, List<ForecastArray> inputs) {
        ForecastArray y = inputs.get(0);
        for (Map.Entry<String, Residual> part : parts.entrySet()) {
            y = part.getValue().forecast(pass, y, othersOf(part.getKey(), inputs));
        }
        return y;
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        checkInputs(inputShapes.length);
        parts.forEach(
                (name, part) -> {
                    List<Shape> inputs = new ArrayList<>(List.of(inputShapes[0]));
                    inputs.addAll(othersOf(name, List.of(inputShapes)));
                    part.initialize(manager, dataType, inputs.toArray(new Shape[0]));
                });
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {inputShapes[0]};
    }

    /**
     * A part of a layer with a connection around it: {@code x + drop(f(norm(x)))} where the norm
     * comes first, {@code norm(x + drop(f(x)))} where it comes last. Norm, sum and dropout are
     * computed alike on all ranks, of whole features.
     *
     * @param part the part f, whose output is the same on all ranks
     * @param norm the norm
     * @param dropout the dropout of the part's output, or {@code null}
     * @param preNorm whether the norm comes first
     */
    private record Residual(
            Block part, Block norm, @Nullable ParallelDropout dropout, boolean preNorm) {

        /**
         * Initializes what the connection is around.
         *
         * @param manager the manager of the parameters
         * @param type their type
         * @param inputs the shapes of the part's inputs, first x
         * @throws IllegalArgumentException if the part's output cannot be added to x
         */
        void initialize(NDManager manager, DataType type, Shape... inputs) {
            part.initialize(manager, type, inputs);
            long features = featuresOf(inputs[0]);
            long units = featuresOf(part.getOutputShapes(inputs)[0]);
            if (units != features) {
                throw Errors.argument(
                        "The output of %s is added to its input: it has %s features, and the"
                                + " input of"
                                + " the layer, %s, has %s. Build the layer with the width %4$s,"
                                + " or let"
                                + " a Linear of %2$s units come before it",
                        part.getClass().getSimpleName(), units, inputs[0], features);
            }
            norm.initialize(manager, type, inputs[0]);
            if (dropout != null) {
                dropout.initialize(manager, type, inputs[0]);
            }
        }

        /**
         * Computes the part and what is around it.
         *
         * @param store the parameters
         * @param x the input, [B, T, D]
         * @param training whether it is trained
         * @param others the other inputs of the part
         * @return the output, [B, T, D]
         */
        NDArray forward(ParameterStore store, NDArray x, boolean training, NDList others) {
            NDList inputs = new NDList(preNorm ? call(norm, store, new NDList(x), training) : x);
            inputs.addAll(others);
            NDArray y = call(part, store, inputs, training);
            if (dropout != null) {
                y = call(dropout, store, new NDList(y), training);
            }
            NDArray sum = x.add(y);
            return preNorm ? sum : call(norm, store, new NDList(sum), training);
        }

        /**
         * Notes what that will communicate.
         *
         * @param pass the pass of one rank
         * @param x the input
         * @param others the other inputs of the part
         * @return the output
         */
        ForecastArray forecast(PassForecast pass, ForecastArray x, List<ForecastArray> others) {
            List<ForecastArray> inputs = new ArrayList<>();
            inputs.add(preNorm ? pass.visit(norm, x) : x);
            inputs.addAll(others);
            ForecastArray y = pass.visit(part, inputs.toArray(new ForecastArray[0]));
            ForecastArray sum = x.plus(y.withShape(x.shape()));
            return preNorm ? sum : pass.visit(norm, sum);
        }

        private static long featuresOf(Shape shape) {
            return shape.get(shape.dimension() - 1);
        }

        private static NDArray call(
                Block block, ParameterStore store, NDList inputs, boolean training) {
            return block.forward(store, inputs, training).singletonOrThrow();
        }
    }

    /**
     * What a layer of a transformer is built of.
     *
     * @param <T> the builder
     */
    public abstract static class Builder<T extends Builder<T>> {

        private @Nullable ParallelMultiHeadAttention attention;
        private @Nullable ParallelMlp mlp;
        private @Nullable Supplier<? extends Block> norm;
        private boolean preNorm;
        private float dropoutRate;
        boolean recompute;

        /** Creates a builder. */
        protected Builder() {}

        /**
         * Returns this builder.
         *
         * @return this builder
         */
        protected abstract T self();

        /**
         * Sets the self-attention.
         *
         * @param attention the attention, whose embedding size is the width of the layer
         * @return this builder
         */
        public T setAttention(ParallelMultiHeadAttention attention) {
            this.attention = attention;
            return self();
        }

        /**
         * Sets the MLP.
         *
         * @param mlp the MLP, whose units are the width of the layer
         * @return this builder
         */
        public T setMlp(ParallelMlp mlp) {
            this.mlp = mlp;
            return self();
        }

        /**
         * Sets what makes the norms, such as {@code () -> RmsNorm.builder().build()} or {@code ()
         * -> LayerNorm.builder().axis(2).build()}: over the features, the last of three axes.
         *
         * @param norm makes a norm for each part of the layer
         * @return this builder
         */
        public T setNorm(Supplier<? extends Block> norm) {
            this.norm = norm;
            return self();
        }

        /**
         * Sets whether the norm comes before a part of the layer, {@code x + f(norm(x))} as in
         * GPT-2 and Llama, and not after the sum, {@code norm(x + f(x))} as in BERT. Default:
         * false.
         *
         * @param preNorm whether the norm comes first
         * @return this builder
         */
        public T optPreNorm(boolean preNorm) {
            this.preNorm = preNorm;
            return self();
        }

        /**
         * Sets the dropout of the output of each part of the layer, before the sum. That of the
         * attention's weights is the attention's own. Default: 0.
         *
         * @param rate the probability, from 0 to 1
         * @return this builder
         */
        public T optDropout(float rate) {
            dropoutRate = DropoutMask.checkRate(rate);
            return self();
        }

        /**
         * Sets whether the activations of the layer are dropped in training and computed again in
         * the backward pass, as a {@link io.djltp.nn.Recompute} does: of a stack, the inputs of all
         * layers and the activations of one live at a time. Costs a forward pass of the layer and
         * its collectives once more. Parameters have the names that they have without it. Default:
         * false.
         *
         * @param recompute whether they are computed again
         * @return this builder
         */
        public T optRecompute(boolean recompute) {
            this.recompute = recompute;
            return self();
        }

        /** Checks that there is what every layer needs. */
        void check() {
            mlp();
            norm();
            Errors.check(
                    !attention().isCrossAttention(),
                    "setAttention needs self-attention, built without optCrossAttention(true)");
        }

        ParallelMultiHeadAttention attention() {
            return needed(attention);
        }

        ParallelMlp mlp() {
            return needed(mlp);
        }

        private Supplier<? extends Block> norm() {
            return needed(norm);
        }

        private static <P> P needed(@Nullable P part) {
            return Errors.given(part, "A transformer layer needs setAttention, setMlp and setNorm");
        }
    }
}
