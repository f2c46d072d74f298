package io.djltp.training;

import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertSame;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.ndarray.types.SparseFormat;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.GradientCollector;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.collective.Collective;
import io.djltp.cut.Cut;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.IdTraining;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntBinaryOperator;

/** One parameter that an embedding looks up in and a head multiplies with. */
public class TiedWeightTest {

    static final int VOCABULARY = 13;
    private static final int FEATURES = 6;

    private final Map<Integer, IdTraining> expected = new HashMap<>();

    /** A network of plain DJL that uses a parameter twice. */
    private static Block oneParameter() {
        return new GraphBlock(
                        new Shape(IdTraining.PLACES, VOCABULARY),
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
                .add(
                        "body",
                        Blocks.sequence(Blocks.linear(FEATURES), Blocks.tanh()),
                        IdTraining.PLACES,
                        FEATURES);
    }

    static VocabParallelEmbedding.Builder embedding() {
        return VocabParallelEmbedding.builder()
                .setVocabularySize(VOCABULARY)
                .setEmbeddingSize(FEATURES);
    }

    private static ClassificationHead.Builder head(VocabParallelEmbedding embedding) {
        return ClassificationHead.builder()
                .setUnits(VOCABULARY)
                .optBias(false)
                .optBatchShardedInput(true)
                .optTiedWeight(embedding);
    }

    private static Block logits(VocabParallelEmbedding embedding) {
        return ColumnParallelLinear.builder()
                .setUnits(VOCABULARY)
                .optBias(false)
                .optBatchShardedInput(true)
                .optTiedWeight(embedding)
                .build();
    }

    private static Block tied(boolean fused, VocabParallelEmbedding embedding) {
        Block head = fused ? head(embedding).build() : logits(embedding);
        return Blocks.sequence(embedding, Blocks.linear(FEATURES), Blocks.tanh(), head);
    }

    private static IdTraining run(
            TrainerKind kind, java.util.function.Supplier<Block> block, int optimizer) {
        IdTraining.Task task =
                new IdTraining.Task(
                        block,
                        new VocabParallelCrossEntropyLoss(),
                        VOCABULARY,
                        (manager, seed) -> IdTraining.ids(manager, 30 + seed, VOCABULARY),
                        DataType.INT64);
        Optimizer rule = IdTraining.optimizers().get(optimizer).get();
        return IdTraining.run(kind, task, rule, 3 - optimizer);
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
                    Parameter weight = trainer.getModel().getBlock().getParameters().valueAt(0);
                    NDManager lasting =
                            ((ParallelTrainer) trainer)
                                    .getParameterStore(1)
                                    .getValue(weight, Device.cpu(), true)
                                    .getManager();
                    int kept = 0;
                    for (int pass = 0; pass < 6; pass++) {
                        try (NDManager batch = manager.newSubManager();
                                GradientCollector collector = trainer.newGradientCollector()) {
                            NDList ids = new NDList(IdTraining.ids(batch, pass, VOCABULARY));
                            NDList output = trainer.forward(ids, ids);
                            trainer.getLoss().evaluate(ids, output).getFloat();
                        }
                        int now = lasting.getManagedArrays().size();
                        assertTrue(pass < 2 || now == kept, now + " in pass " + pass);
                        kept = now;
                    }
                });
    }

    /** Logits [rows, places, vocabulary]; three batches, two, or one in a step. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void trainsAsOneParameterOfDjl(TrainerKind kind) {
        for (int i = 0; i < 3; i++) {
            IdTraining plain =
                    expected.computeIfAbsent(i, o -> run(PLAIN, TiedWeightTest::oneParameter, o));
            for (boolean fused : new boolean[] {false, true}) {
                IdTraining actual = run(kind, () -> tied(fused, embedding().build()), i);
                String what = kind + (fused ? " fused " : " ") + i;
                actual.assertSame(plain, i == 2 ? 1e-4 : 1e-5, what);
            }
        }
    }

    /**
     * PyTorch 1.13 in float64, with SGD of rate 0.5 and momentum 0.9:
     *
     * <pre>
     * number = lambda i: ((i * 7 + 3) % 23) / 23 - 0.5   # W[r, c] = number(6 r + c)
     * ids = [[(5*i + 3*j + s) % 13 for j in range(3)] for i in range(5)]
     * labels = [[(i*j + 2*s + 1) % 13 for j in range(3)] for i in range(5)]
     * F.cross_entropy(F.linear(torch.tanh(F.embedding(ids, W)), W).reshape(-1, 13), labels)
     * </pre>
     */
    @Test(timeOut = 60_000)
    public void equalsPyTorch() {
        double[] losses = {2.660844366874136, 2.6003119594570827, 2.643863834321906};
        for (boolean fused : new boolean[] {false, true}) {
            VocabParallelEmbedding embedding = embedding().build();
            Block head = fused ? head(embedding).build() : logits(embedding);
            Block block = Blocks.sequence(embedding, Blocks.tanh(), head);
            block.setInitializer((m, s, t) -> m.create(numbers(), s), Parameter.Type.WEIGHT);
            IdTraining.Task task =
                    new IdTraining.Task(
                            () -> block,
                            new VocabParallelCrossEntropyLoss(),
                            VOCABULARY,
                            (manager, seed) -> formula(manager, (i, j) -> i * j + seed / 5 + 1),
                            DataType.INT64,
                            (manager, seed) ->
                                    formula(manager, (i, j) -> 5 * i + 3 * j + seed / 10));
            Optimizer rule = Configs.sgd(0.5f, 0.9f);
            IdTraining run = IdTraining.run(TrainerKind.mesh(1, 3), task, rule, 1);
            double sum = 0;
            double squares = 0;
            for (float value : run.getWeights().get(0)) {
                sum += value;
                squares += (double) value * value;
            }
            for (int i = 0; i < 3; i++) {
                assertEquals(run.getLosses().get(i), losses[i], 1e-5 * losses[i]);
            }
            assertEquals(sum, -1.2443358309572452, 1e-5);
            assertEquals(squares, 5.534963996960874, 5e-5);
        }
    }

    private static float[] numbers() {
        float[] numbers = new float[VOCABULARY * FEATURES];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = (float) ((i * 7 + 3) % 23 / 23.0 - 0.5);
        }
        return numbers;
    }

    private static NDArray formula(NDManager manager, IntBinaryOperator number) {
        long[] numbers = new long[IdTraining.ROWS * IdTraining.PLACES];
        for (int i = 0; i < numbers.length; i++) {
            int row = i / IdTraining.PLACES;
            numbers[i] = number.applyAsInt(row, i % IdTraining.PLACES) % VOCABULARY;
        }
        return manager.create(numbers, new Shape(IdTraining.ROWS, IdTraining.PLACES));
    }

    /** The embedding's all-reduce is all that tying costs, but for rows that are cut. */
    @Test(timeOut = 60_000)
    public void exchangesNoGradientOfTheWeight() {
        IdTraining run = run(TENSOR_2, () -> tied(true, embedding().build()), 2);
        assertEquals(run.getCounts().get(Collective.ALL_REDUCE), 4); // 3 are the head's
        assertEquals(run.getCounts().total(), 4);
    }

    /** A cut that the head takes over, several ranges a rank, and a row for padding. */
    @Test(timeOut = 60_000)
    public void aChosenCutAndPadding() {
        Cut cut = Cut.ofLengths(3, 10);
        IdTraining plain =
                run(PLAIN, () -> tied(false, embedding().optPaddingIndex(12).build()), 1);
        for (TrainerKind kind : List.of(TENSOR_2, MESH_2X2)) {
            IdTraining actual =
                    run(
                            kind,
                            () ->
                                    tied(
                                            true,
                                            embedding()
                                                    .optPaddingIndex(12)
                                                    .optShardingStrategy(
                                                            ShardingStrategy.rowwise(cut))
                                                    .build()),
                            1);
            actual.assertSame(plain, 1e-5, "" + kind);
        }
    }

    /** Both blocks write the one weight, as DJL's do, and read it. */
    @Test(timeOut = 60_000)
    public void isSavedAndLoaded() throws IOException, MalformedModelException {
        Block trained = tied(true, embedding().build());
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        float[][] values = new float[1][];
        TrainingRun.of(
                TENSOR_3,
                trained,
                new VocabParallelCrossEntropyLoss(),
                new Shape(2, 3),
                (trainer, manager, numbers) -> {
                    backward(
                            trainer,
                            manager.create(new long[] {0, 5, 12}, new Shape(1, 3)),
                            manager.create(new long[] {1, 2, 3}, new Shape(1, 3)));
                    trainer.step();
                    try {
                        trained.saveParameters(new DataOutputStream(bytes));
                    } catch (IOException e) {
                        throw new AssertionError(e);
                    }
                    trainer.close();
                    values[0] = weights(trained).get(0);
                });
        try (NDManager manager = NDManager.newBaseManager()) {
            Block loaded = tied(true, embedding().build());
            loaded.loadParameters(
                    manager, new DataInputStream(new ByteArrayInputStream(bytes.toByteArray())));
            List<float[]> weights = weights(loaded);
            assertEquals(weights.get(0), values[0]);
            assertEquals(weights.get(3), values[0]);
            List<Parameter> parameters = loaded.getParameters().values();
            assertSame(parameters.get(0), parameters.get(3));
        }
    }

    @Test
    public void whatIsRefused() {
        expectThrows(
                IllegalArgumentException.class,
                () -> head(embedding().build()).setUnits(12).build());
        expectThrows(
                IllegalArgumentException.class,
                () -> head(embedding().build()).optSampleShare(0.5f).build());
        VocabParallelEmbedding twice = embedding().build();
        head(twice).build();
        expectThrows(IllegalArgumentException.class, () -> head(twice).build());
        Block narrow = Blocks.sequence(twice, Blocks.linear(5), head(embedding().build()).build());
        try (NDManager manager = NDManager.newBaseManager()) {
            throwsArgument(
                    () -> narrow.initialize(manager, DataType.FLOAT32, new Shape(2, 3)),
                    "5 features");
        }
    }

    /** Blocks that cut one weight in two ways. */
    @Test(timeOut = 60_000)
    public void twoCuts() {
        VocabParallelEmbedding embedding = embedding().build();
        Block block =
                Blocks.sequence(
                        embedding,
                        Blocks.linear(FEATURES),
                        head(embedding)
                                .optShardingStrategy(ShardingStrategy.rowwise(Cut.ofLengths(3, 10)))
                                .build());
        throwsArgument(() -> run(TENSOR_2, () -> block, 0), "two strategies");
    }
}
