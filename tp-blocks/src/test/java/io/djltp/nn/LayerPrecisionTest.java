package io.djltp.nn;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.gelu;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.mlp;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.newRow;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.table;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.ParameterStore;
import ai.djl.training.loss.Loss;

import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;

/**
 * Networks whose layers compute in bfloat16 are trained as the same network is in float32 by DJL's
 * own trainer, but for rounding: on 1 to 4 ranks with uneven parts, in all modes, with
 * micro-batches.
 *
 * <p>Losses and parameters after three steps are compared relative to the largest of an array. A
 * product is off by about sqrt(k) 2^-8 of its terms, as roundings are independent; two layers
 * forward and two backward, over three steps of which each moves a weight by some hundredths, stay
 * below 2^-6. (A single product keeps a bound that no draw can break: LinearProductTest.)
 */
public class LayerPrecisionTest {

    private static final double TOLERANCE = 1.0 / 64;
    private static final int WIDTH = 8;
    private static final int LENGTH = 5;

    @BeforeClass
    public void needBFloat16() {
        if (Precision.BFLOAT16.whyNot(Device.cpu()).isPresent()) {
            throw new SkipException("the processor has no bfloat16");
        }
    }

    @DataProvider
    public Object[][] networks() {
        return new Object[][] {
            {"gathered and scattered", gatheredAndScattered(), new long[] {LENGTH, 7}},
            {"grouped queries and gates", decoders(false, false), new long[] {LENGTH, WIDTH}},
            {"recomputed layers", decoders(true, false), new long[] {LENGTH, WIDTH}},
            {"sequence-parallel layers", decoders(false, true), new long[] {LENGTH, WIDTH}},
        };
    }

    @Test(dataProvider = "networks", timeOut = 120_000)
    public void isTrained(String name, Function<Precision, Block> network, long[] tail) {
        for (int ranks : new int[] {1, 2, 3, 4}) {
            assertTrained(new TrainerKind(ParallelMode.TENSOR, ranks), network, tail);
        }
        assertTrained(MESH_2X2, network, tail);
    }

    /** Three axes, the output gathered, and a row-parallel layer that takes its slice itself. */
    private static Function<Precision, Block> gatheredAndScattered() {
        return precision ->
                sequence(
                        newColumn(13).optGatherOutput(true).optPrecision(precision).build(),
                        gelu(),
                        newRow(WIDTH).optInputIsParallel(false).optPrecision(precision).build());
    }

    private static Function<Precision, Block> decoders(boolean recompute, boolean cutTokens) {
        return precision -> {
            Block decoder = decoder(precision, WIDTH, recompute, cutTokens);
            return cutTokens
                    ? sequence(
                            LayerNorm.builder().axis(2).build(),
                            new SequenceScatter(),
                            decoder,
                            new SequenceGather())
                    : decoder;
        };
    }

    /** Three steps of two micro-batches each. */
    private static TrainingRun run(TrainerKind kind, Block block, long... tail) {
        long[] shape = new long[tail.length + 1];
        shape[0] = 9;
        System.arraycopy(tail, 0, shape, 1, tail.length);
        long[] target = shape.clone();
        target[target.length - 1] = WIDTH;
        return TrainingRun.of(
                kind,
                block,
                Loss.l2Loss(),
                new Shape(shape),
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 3; step++) {
                        for (int part = 0; part < 2; part++) {
                            NDArray data = TrainingRun.random(manager, 10 * step + part, shape);
                            NDArray labels =
                                    TrainingRun.random(manager, 10 * step + part + 5, target);
                            numbers.add(TrainingRun.backward(trainer, data, labels));
                        }
                        trainer.step();
                    }
                });
    }

    private static void assertTrained(
            TrainerKind kind, Function<Precision, Block> network, long... tail) {
        TrainingRun wide = run(PLAIN, network.apply(Precision.FLOAT32), tail);
        TrainingRun narrow = run(kind, network.apply(Precision.BFLOAT16), tail);
        narrow.assertSame(wide, TOLERANCE);
        // and it is another arithmetic
        Assert.expectThrows(AssertionError.class, () -> narrow.assertSame(wide, 1e-5));
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void columnAndRow(TrainerKind kind) {
        assertTrained(
                kind,
                precision ->
                        sequence(
                                newColumn(17)
                                        .optBatchShardedInput(true)
                                        .optPrecision(precision)
                                        .build(),
                                gelu(),
                                newRow(WIDTH)
                                        .optBatchShardedOutput(true)
                                        .optPrecision(precision)
                                        .build()),
                11);
    }

    /** The layer that has the weight of an embedding has the sum of both gradients. */
    @Test(dataProvider = "kinds", dataProviderClass = SequenceParallelTest.class, timeOut = 60_000)
    public void tiedWeights(TrainerKind kind) {
        TrainingRun[] runs = new TrainingRun[2];
        for (int i = 0; i < 2; i++) {
            Precision precision = i == 0 ? Precision.FLOAT32 : Precision.BFLOAT16;
            VocabParallelEmbedding embedding = table(13, WIDTH).build();
            Block block =
                    sequence(
                            embedding,
                            newColumn(13)
                                    .optTiedWeight(embedding)
                                    .optBias(false)
                                    .optGatherOutput(true)
                                    .optPrecision(precision)
                                    .build());
            runs[i] =
                    TrainingRun.of(
                            i == 0 ? PLAIN : kind,
                            block,
                            Configs.of(Loss.l2Loss(), Configs.sgd(0.1f, 0.5f)),
                            Network.batches("9:13", "9x13"),
                            3);
        }
        runs[1].assertSame(runs[0], TOLERANCE);
    }

    private static Block decoder(
            Precision precision, long width, boolean recompute, boolean cutTokens) {
        return ParallelTransformerDecoderLayer.builder()
                .setAttention(
                        attention(width, 4)
                                .optKeyValueHeads(2)
                                .optCausal(true)
                                .optBias(false) // that of keys has no gradient but rounding
                                .optSequenceParallel(cutTokens)
                                .optPrecision(precision)
                                .build())
                .setMlp(
                        mlp(width, width + 1)
                                .optGated(true)
                                .optSequenceParallel(cutTokens)
                                .optPrecision(precision)
                                .build())
                .setNorm(() -> RmsNorm.builder().build())
                .optPreNorm(true)
                .optRecompute(recompute)
                .build();
    }

    /** What is to be learned is the square of each token, and the mean of those up to it. */
    @Test(timeOut = 120_000)
    public void aTransformerReachesTheSameLoss() {
        List<Float> wide = losses(PLAIN, Precision.FLOAT32);
        double reached = mean(wide);
        Assert.assertTrue(reached < 0.5 * wide.get(0), "it learns: " + wide);
        for (int ranks : new int[] {1, 3}) {
            TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
            double narrow = mean(losses(kind, Precision.BFLOAT16));
            Assert.assertEquals(narrow, reached, 0.02 * reached, kind + "");
        }
    }

    /** Of the last steps. */
    private static double mean(List<Float> losses) {
        List<Float> last = losses.subList(70, 80);
        return last.stream().mapToDouble(Float::doubleValue).average().orElseThrow();
    }

    private static List<Float> losses(TrainerKind kind, Precision precision) {
        List<Float> losses = new ArrayList<>();
        TrainingRun.of(
                kind,
                sequence(linear(16), decoder(precision, 16, false, false), linear(4)),
                Loss.l2Loss(),
                new Shape(16, 6, 4),
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 80; step++) {
                        NDArray data = TrainingRun.random(manager, step, 16, 6, 4);
                        NDArray target = data.square().mul(2).add(data.cumSum(1).mul(0.3f));
                        losses.add(TrainingRun.step(trainer, data, target));
                    }
                });
        return losses;
    }

    /** A residual network under DJL's own trainer is the unsharded one, in bfloat16 too. */
    @Test(timeOut = 60_000)
    public void djlsTrainerHasThePrecision() {
        assertTrained(
                PLAIN,
                precision ->
                        sequence(
                                sum(map(x -> x), newColumn(WIDTH).optPrecision(precision).build())),
                WIDTH);
    }

    @Test
    public void aPrecisionThatLayersDoNotHaveIsRefusedWhereItIsChosen() {
        Refusals.throwsArgument(
                () -> ColumnParallelLinear.builder().optPrecision(Precision.TF32),
                "" + Precision.TF32);
    }

    /** A processor does not have it, which is known when the first array comes. */
    @Test(timeOut = 60_000)
    public void float16IsRefusedOnAProcessor() {
        assertForwardRefused(Precision.FLOAT16, DataType.FLOAT32, "float16");
    }

    /** One error, before the first step, that says what to do. */
    @Test(timeOut = 60_000)
    public void weightsOf16BitsAreRefused() {
        assertForwardRefused(
                Precision.BFLOAT16, DataType.FLOAT16, "Initialize the network in float32");
    }

    private static void assertForwardRefused(
            Precision precision, DataType weights, String message) {
        Block block = ColumnParallelLinear.builder().setUnits(4).optPrecision(precision).build();
        try (NDManager manager = NDManager.newBaseManager()) {
            block.initialize(manager, weights, new Shape(2, 3));
            NDList x = new NDList(manager.ones(new Shape(2, 3)));
            ParameterStore store = new ParameterStore(manager, false);
            Refusals.throwsArgument(() -> block.forward(store, x, false), message);
        }
    }
}
