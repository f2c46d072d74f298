package io.djltp.training;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.convolutional.Conv1d;
import ai.djl.nn.core.Linear;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.initializer.XavierInitializer;
import ai.djl.training.loss.Loss;
import ai.djl.training.tracker.CyclicalTracker;
import ai.djl.training.tracker.CyclicalTracker.CyclicalMode;
import ai.djl.training.tracker.Tracker;

import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.moe.MixtureOfExperts;
import io.djltp.nn.moe.MixtureOptions;
import io.djltp.torch.Precision;

import java.util.function.Function;

/** An option of a layer, a loss, a tracker or an initializer that processes set differently. */
enum DifferentOption {
    SAMPLE_SHARE(".options.sampleShare", 0.5f, 0.75f, x -> head().optSampleShare(x).build()),
    NO_SAMPLE_SHARE(".options.sampleShare", 1f, 0.75f, x -> head().optSampleShare(x).build()),
    SAMPLE_SEED(".options.sampleSeed", 1L, 2L, x -> head().optSampleSeed(x).build()),
    MARGIN(".options.margin.m2", 0.25f, 0.5f, x -> head().optMargin(Margin.arcFace(9, x)).build()),
    HEAD_PRECISION(".options.precision", x -> head().optPrecision(x).build()),
    PRECISION(
            ".product.precision",
            x -> ColumnParallelLinear.builder().setUnits(8).optPrecision(x).build()),
    MLP_PRECISION(
            "/01up.product.precision",
            x -> ParallelMlp.builder().setUnits(8).setHiddenFeatures(8).optPrecision(x).build()),
    ATTENTION_PRECISION(".projections.precision", x -> attention().optPrecision(x).build()),
    ROTARY(
            ".rotary.base",
            100.0,
            1000.0,
            x -> attention().optRotary(RotaryEmbedding.builder().optBase(x).build()).build()),
    NO_ROTARY(
            ".rotary",
            "not there",
            "io.djltp.nn.attention.RotaryEmbedding",
            x ->
                    attention()
                            .optRotary(
                                    x.startsWith("not") ? null : RotaryEmbedding.builder().build())
                            .build()),
    CAPACITY(".options.capacityFactor", 0.5, 2.0, x -> experts().optCapacityFactor(x).build()),
    NORMALIZED(".options.normalized", true, false, x -> experts().optNormalizeWeights(x).build()),
    TOP_K(".options.topK", 1, 2, x -> experts().optTopK(x).build()),
    CONV_PADDING(".padding", new Shape(1), new Shape(2), x -> conv().optPadding(x).build()),
    CONV_DILATION(".dilation", new Shape(1), new Shape(2), x -> conv().optDilation(x).build()),
    LEAKY_RELU(
            "/02LambdaBlock.lambda.arg$1",
            0.25f,
            0.5f,
            x -> linear().add(Activation.leakyReluBlock(x))),
    ELU("/02LambdaBlock.lambda.arg$1", 0.25f, 0.5f, x -> linear().add(Activation.eluBlock(x))),
    INITIALIZER(
            "the initializer of weight",
            "ai.djl.training.initializer.NormalInitializer",
            "ai.djl.training.initializer.XavierInitializer",
            x -> with(x.contains("Normal") ? new NormalInitializer() : new XavierInitializer())),
    SIGMA("the initializer of weight.sigma", 0.25f, 0.5f, x -> with(new NormalInitializer(x))),
    CLASS_WEIGHTS(
            "the loss.options.classWeights",
            "[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]",
            "[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0]",
            DifferentOption::weighted),
    STEPS("the optimizer.learningRateTracker.steps", "[1, 3]", "[1, 4]", DifferentOption::steps),
    CYCLICAL_MODE(
            "the optimizer.learningRateTracker.scaleFunction",
            "ai.djl.training.tracker.CyclicalTracker$TriangularScaleFunction",
            "ai.djl.training.tracker.CyclicalTracker$Triangular2ScaleFunction",
            DifferentOption::cyclical);

    static final int UNITS = 8;

    /** What is said to differ, and the values of both processes. */
    final String what;

    final Object first;
    final Object second;
    private final Function<Object, ?> maker;

    @SuppressWarnings("unchecked") // both values are of one type
    <T> DifferentOption(String what, T first, T second, Function<T, ?> maker) {
        this.what = what.startsWith("the") ? what : "the network" + what;
        this.first = first;
        this.second = second;
        this.maker = value -> maker.apply((T) value);
    }

    DifferentOption(String what, Function<Precision, ?> maker) {
        this(what, Precision.FLOAT32, Precision.BFLOAT16, maker);
    }

    /** Returns the network, loss or tracker of a process. */
    Object of(int process) {
        return maker.apply(process == 0 ? first : second);
    }

    private static Loss weighted(String text) {
        float[] weights = {1, 1, 1, 1, 1, 1, 1, text.endsWith("1.0]") ? 1 : 5};
        return new VocabParallelCrossEntropyLoss(
                "loss", LossOptions.DEFAULT.withClassWeights(weights));
    }

    private static Tracker steps(String text) {
        int[] steps = {1, text.endsWith("3]") ? 3 : 4};
        return Tracker.multiFactor().setBaseValue(0.1f).setSteps(steps).build();
    }

    private static Tracker cyclical(String text) {
        boolean plain = text.endsWith("TriangularScaleFunction");
        CyclicalMode mode = plain ? CyclicalMode.TRIANGULAR : CyclicalMode.TRIANGULAR2;
        return CyclicalTracker.builder().optMode(mode).build();
    }

    private static ClassificationHead.Builder head() {
        return ClassificationHead.builder().setUnits(UNITS).optBias(false);
    }

    private static ParallelMultiHeadAttention.Builder attention() {
        return ParallelMultiHeadAttention.builder().setEmbeddingSize(8).setHeads(2);
    }

    private static MixtureOptions experts() {
        return MixtureOfExperts.builder().setExperts(4).setHiddenFeatures(8);
    }

    private static Conv1d.Builder conv() {
        return Conv1d.builder().setFilters(UNITS).setKernelShape(new Shape(3));
    }

    /** Returns a network to begin with. */
    static SequentialBlock linear() {
        return new SequentialBlock().add(Linear.builder().setUnits(UNITS).build());
    }

    private static Block with(Initializer initializer) {
        Block block = ColumnParallelLinear.builder().setUnits(UNITS).build();
        block.setInitializer(initializer, Parameter.Type.WEIGHT);
        return block;
    }
}
