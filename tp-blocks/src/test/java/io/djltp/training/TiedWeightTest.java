package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.ArrayAssert.floats;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.newHead;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.counted;
import static io.djltp.testing.TrainingRun.held;
import static io.djltp.testing.TrainingRun.steps;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.ndarray.types.SparseFormat;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.collective.CollectiveCounts;
import io.djltp.cut.Cut;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.List;
import java.util.function.IntBinaryOperator;
import java.util.function.Supplier;

/** One parameter that an embedding looks up in and a head multiplies with. */
public class TiedWeightTest {

    static final int VOCABULARY = 13;
    private static final int FEATURES = 6;
    private static final Network.Batches BATCHES = Network.batches("5x3:13", "5x3:13");

    /** A network of plain DJL that uses a parameter twice. */
    private static Block oneParameter() {
        return new GraphBlock(
                        new Shape(3, VOCABULARY),
                        (call, inputs) -> {
                            NDArray ids = inputs.head();
                            NDArray table = call.value("table");
                            NDList rows =
                                    ids.getNDArrayInternal()
                                            .embedding(ids, table, SparseFormat.DENSE);
                            NDArray x = call.call("body", rows.head()).reshape(-1, FEATURES);
                            NDArray logits = x.matMul(table.transpose());
                            return new NDList(logits.reshape(ids.getShape().add(VOCABULARY)));
                        })
                .add("table", new Shape(VOCABULARY, FEATURES))
                .add("body", sequence(linear(FEATURES), tanh()), 3, FEATURES);
    }

    static VocabParallelEmbedding.Builder embedding() {
        return Blocks.table(VOCABULARY, FEATURES);
    }

    private static ClassificationHead.Builder head(VocabParallelEmbedding embedding) {
        return newHead(VOCABULARY)
                .optBias(false)
                .optBatchShardedInput(true)
                .optTiedWeight(embedding);
    }

    private static Block last(boolean fused, VocabParallelEmbedding embedding) {
        return fused
                ? head(embedding).build()
                : newColumn(VOCABULARY)
                        .optBias(false)
                        .optBatchShardedInput(true)
                        .optTiedWeight(embedding)
                        .build();
    }

    private static Block tied(boolean fused, VocabParallelEmbedding embedding) {
        return sequence(embedding, linear(FEATURES), tanh(), last(fused, embedding));
    }

    /** Logits [rows, places, vocabulary]; one to three batches in a step. */
    private static TrainingRun run(TrainerKind kind, Block block, Optimizer rule, int batches) {
        return TrainingRun.of(
                kind,
                block,
                Configs.of(new VocabParallelCrossEntropyLoss(), rule),
                BATCHES.shapes(),
                (trainer, manager, losses) -> {
                    for (int step = 0; step < 3; step++) {
                        for (int i = 0; i < batches; i++) {
                            NDList[] batch = BATCHES.make(manager, 10 * step + i);
                            losses.add(backward(trainer, batch[0], batch[1]));
                        }
                        trainer.step();
                    }
                });
    }

    /** A tied weight is there once more at the end. */
    private static void assertSame(TrainingRun actual, TrainingRun plain, double tolerance) {
        List<float[]> expected = plain.getWeights();
        assertClose(floats(actual.getNumbers()), floats(plain.getNumbers()), tolerance, "losses");
        List<float[]> own = actual.getWeights().subList(0, expected.size());
        assertAllClose(own, expected, tolerance, "parameter");
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void trainsAsOneParameterOfDjl(TrainerKind kind) {
        List<Supplier<Optimizer>> rules =
                List.of(
                        () -> Configs.sgd(0.3f),
                        () -> Configs.sgd(0.3f, 0.9f),
                        () -> Configs.adam(0.02f));
        for (int i = 0; i < rules.size(); i++) {
            TrainingRun plain = run(PLAIN, oneParameter(), rules.get(i).get(), 3 - i);
            for (boolean fused : new boolean[] {false, true}) {
                Block block = tied(fused, embedding().build());
                TrainingRun actual = run(kind, block, rules.get(i).get(), 3 - i);
                assertSame(actual, plain, i == 2 ? 1e-4 : 1e-5);
            }
        }
    }

    /** A cut that the head takes over, several ranges a rank, and a row for padding. */
    @Test(timeOut = 60_000)
    public void aChosenCutAndPadding() {
        VocabParallelEmbedding padded = embedding().optPaddingIndex(12).build();
        TrainingRun plain = run(PLAIN, tied(false, padded), Configs.sgd(0.3f, 0.9f), 2);
        for (TrainerKind kind : List.of(TENSOR_2, MESH_2X2)) {
            VocabParallelEmbedding.Builder own = embedding().optPaddingIndex(12);
            own.optShardingStrategy(ShardingStrategy.rowwise(Cut.ofLengths(3, 10)));
            Block block = tied(true, own.build());
            assertSame(run(kind, block, Configs.sgd(0.3f, 0.9f), 2), plain, 1e-5);
        }
    }

    /** A loop that only reads losses. */
    @Test(timeOut = 60_000)
    @SuppressWarnings("try") // a collector is used by being open
    public void passesThatAreNotDifferentiatedLeaveNothing() {
        TrainingRun.of(
                MIXED_2,
                tied(true, embedding().build()),
                new VocabParallelCrossEntropyLoss(),
                new Shape(4, 3),
                (trainer, manager, numbers) -> {
                    NDManager lasting = held(trainer, 1, 0).getManager();
                    int kept = 0;
                    for (int pass = 0; pass < 6; pass++) {
                        try (NDManager scope = manager.newSubManager();
                                GradientCollector collector = trainer.newGradientCollector()) {
                            NDList[] batch = BATCHES.make(scope, pass);
                            NDList output = trainer.forward(batch[0], batch[1]);
                            trainer.getLoss().evaluate(batch[1], output).getFloat();
                        }
                        int now = lasting.getManagedArrays().size();
                        assertTrue(pass < 2 || now == kept, now + " in pass " + pass);
                        kept = now;
                    }
                });
    }

    /**
     * PyTorch 1.13 in float64, with SGD of rate 0.5 and momentum 0.9:
     *
     * <pre>
     * number = lambda i: ((i * 7 + 3) % 23) / 23 - 0.5      # W[r, c] = number(6 r + c)
     * ids = [[(5*i + 3*j + s) % 13 for j in range(3)] for i in range(5)]
     * labels = [[(i*j + 2*s + 1) % 13 for j in range(3)] for i in range(5)]
     * F.cross_entropy(F.linear(torch.tanh(F.embedding(ids, W)), W).reshape(-1, 13), labels)
     * </pre>
     */
    @Test(timeOut = 60_000)
    public void equalsPyTorch() {
        float[] losses = {2.660844366874136f, 2.6003119594570827f, 2.643863834321906f};
        Network.Batches batches =
                (m, step) ->
                        new NDList[] {
                            formula(m, (i, j) -> 5 * i + 3 * j + step),
                            formula(m, (i, j) -> i * j + 2 * step + 1)
                        };
        Optimizer rule = Configs.sgd(0.5f, 0.9f);
        DefaultTrainingConfig config = Configs.of(new VocabParallelCrossEntropyLoss(), rule);
        for (boolean fused : new boolean[] {false, true}) {
            VocabParallelEmbedding embedding = embedding().build();
            Block block = sequence(embedding, tanh(), last(fused, embedding));
            block.setInitializer(
                    (m, s, t) -> m.arange(78f).mul(7).add(3).mod(23).div(23).sub(0.5f).reshape(s),
                    Parameter.Type.WEIGHT);
            TrainingRun run = TrainingRun.of(TrainerKind.mesh(1, 3), block, config, batches, 3);
            double sum = 0;
            double squares = 0;
            for (float value : run.getWeights().get(0)) {
                sum += value;
                squares += (double) value * value;
            }
            assertClose(floats(run.getNumbers()), losses, 1e-5, "losses");
            assertEquals(sum, -1.2443358309572452, 1e-5);
            assertEquals(squares, 5.534963996960874, 5e-5);
        }
    }

    private static NDList formula(NDManager manager, IntBinaryOperator number) {
        long[] numbers = new long[15];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = number.applyAsInt(i / 3, i % 3) % VOCABULARY;
        }
        return new NDList(manager.create(numbers, new Shape(5, 3)));
    }

    /** The embedding's all-reduce is all that tying costs, but for rows that are cut. */
    @Test(timeOut = 60_000)
    public void exchangesNoGradientOfTheWeight() {
        TrainingRun.of(
                TENSOR_2,
                tied(true, embedding().build()),
                new VocabParallelCrossEntropyLoss(),
                new Shape(5, 3),
                (trainer, manager, numbers) -> {
                    NDList[] batch = BATCHES.make(manager, 0);
                    steps(trainer, numbers, BATCHES, 0, 2);
                    CollectiveCounts counts =
                            counted(trainer, () -> backward(trainer, batch[0], batch[1]));
                    assertEquals(
                            counts.toString(),
                            "2 all-reduce, 1 all-gather"); // 1 and 1 are the head's
                });
    }

    /** Both blocks write the one weight, as DJL's do, and read it. */
    @Test(timeOut = 60_000)
    public void isSavedAndLoaded() throws IOException, MalformedModelException {
        Block trained = tied(true, embedding().build());
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        float[] values =
                TrainingRun.of(
                                TENSOR_3,
                                trained,
                                new VocabParallelCrossEntropyLoss(),
                                new Shape(5, 3),
                                (trainer, manager, numbers) -> {
                                    steps(trainer, numbers, BATCHES, 0, 1);
                                    trained.saveParameters(new DataOutputStream(bytes));
                                })
                        .getWeights()
                        .get(0);
        try (NDManager manager = NDManager.newBaseManager()) {
            Block loaded = tied(true, embedding().build());
            InputStream saved = new ByteArrayInputStream(bytes.toByteArray());
            loaded.loadParameters(manager, new DataInputStream(saved));
            assertEquals(weights(loaded).get(0), values);
            assertEquals(weights(loaded).get(3), values);
            List<Parameter> parameters = loaded.getParameters().values();
            Assert.assertSame(parameters.get(0), parameters.get(3));
        }
    }

    @Test(timeOut = 60_000)
    public void whatCannotBeTied() {
        throwsArgument(() -> head(embedding().build()).setUnits(12).build());
        throwsArgument(() -> head(embedding().build()).optSampleShare(0.5f).build());
        VocabParallelEmbedding twice = embedding().build();
        head(twice).build();
        throwsArgument(() -> head(twice).build());
        Block narrow = sequence(twice, linear(5), head(embedding().build()).build());
        try (NDManager manager = NDManager.newBaseManager()) {
            throwsArgument(
                    () -> narrow.initialize(manager, DataType.FLOAT32, new Shape(2, 3)),
                    "5 features");
        }
        // blocks that cut one weight in two ways
        VocabParallelEmbedding own = embedding().build();
        ShardingStrategy other = ShardingStrategy.rowwise(Cut.ofLengths(3, 10));
        Block cut = head(own).optShardingStrategy(other).build();
        Block block = sequence(own, linear(FEATURES), cut);
        throwsArgument(() -> run(TENSOR_2, block, Configs.sgd(0.1f), 1), "two strategies");
    }
}
