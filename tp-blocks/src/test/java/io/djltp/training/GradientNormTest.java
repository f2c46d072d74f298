package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.ArrayAssert.floats;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.scattered;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.note;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.SequenceGather;
import io.djltp.nn.SequenceScatter;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Configs;
import io.djltp.testing.CutNetwork;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/** The norm of all gradients counts each element once, and limits them as PyTorch does it. */
public class GradientNormTest {

    private static final double TOLERANCE = 1e-5;
    private static final float LIMIT = 0.2f;

    @DataProvider
    public static Object[][] kinds() {
        return TrainerKind.rows(
                TENSOR_1, TENSOR_2, TENSOR_3, TENSOR_4, DATA_3, MIXED_2, MIXED_3, MESH_2X2,
                MESH_2X3);
    }

    /**
     * The numbers are those of PyTorch 1.13. {@code f(n, a, m, s, d)} are the numbers {@code (i * a
     * % m - s) / d}:
     *
     * <pre>
     * w1=f(24,7,11,5,10).view(6,4); b1=f(6,3,5,2,10); w2=f(18,5,13,6,10).view(3,6); b2=f(3,2,3,1,10)
     * x=f(24,3,7,3,3).view(6,4); y=f(18,2,5,2,2).view(6,3); p=[w1,b1,w2,b2]; opt=SGD(p,lr=0.5)
     * for _ in range(3):
     *     opt.zero_grad(); (0.5*((x@w1.T+b1).tanh()@w2.T+b2-y)**2).mean().backward()
     *     print(float(torch.nn.utils.clip_grad_norm_(p,0.2))); opt.step()
     * print([round(float(v),7) for t in p for v in t.flatten()])
     * </pre>
     */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void isThatOfPyTorch(TrainerKind kind) {
        float[] norms = {0.2665138840675354f, 0.21335117518901825f, 0.1706121861934662f};
        float[] weights = {
            -0.5369473f, 0.1409146f, -0.1498078f, 0.5003567f, 0.1376376f, -0.2511607f, 0.336336f,
            0.0159562f, -0.3667705f, 0.2821404f, -0.0991152f, -0.5460644f, 0.1557807f, -0.2453769f,
            0.547713f, 0.1060446f, -0.2644714f, 0.4569777f, -0.0585784f, -0.3576754f, 0.3266256f,
            -0.0947792f, -0.4931418f, 0.1603599f, -0.1692859f, 0.0484988f, -0.0502637f, 0.2065064f,
            -0.0428062f, -0.1507163f, -0.6241173f, -0.1129654f, 0.3979782f, -0.4088541f, 0.1097278f,
            0.6043227f, -0.1442618f, 0.2607801f, -0.5118849f, -0.0367796f, 0.500743f, -0.2662542f,
            0.1957498f, -0.5443048f, -0.1048026f, 0.4652246f, -0.4076314f, 0.0417641f, -0.0667285f,
            0.0101633f, 0.062811f
        };
        Block block = sequence(head(6), tanh(), scattered(3));
        List<float[]> start =
                List.of(
                        f(24, 7, 11, 5, 10),
                        f(6, 3, 5, 2, 10),
                        f(18, 5, 13, 6, 10),
                        f(3, 2, 3, 1, 10));
        Iterator<float[]> next = start.iterator();
        block.setInitializer((m, shape, type) -> m.create(next.next(), shape), p -> true);
        Network.Batches batches =
                (manager, step) ->
                        new NDList[] {
                            new NDList(manager.create(f(24, 3, 7, 3, 3), new Shape(6, 4))),
                            new NDList(manager.create(f(18, 2, 5, 2, 2), new Shape(6, 3)))
                        };
        try (NDManager manager = NDManager.newBaseManager()) {
            block.initialize(manager, DataType.FLOAT32, new Shape(6, 4));
            TrainingRun run = train(kind.clippedTo(LIMIT), block, batches, LIMIT, 3);
            assertClose(floats(run.getNumbers()), norms, TOLERANCE, "norms");
            List<Float> all = new ArrayList<>();
            run.getWeights().forEach(each -> note(all, manager.create(each)));
            assertClose(floats(all), weights, TOLERANCE, "weights");
        }
    }

    private static float[] f(int n, int a, int m, int s, int d) {
        float[] values = new float[n];
        for (int i = 0; i < n; i++) {
            values[i] = (float) ((i * a % m - s) / (double) d);
        }
        return values;
    }

    /** Cuts of several ranges, and ranges that several ranks have, beside replicas. */
    @Test(timeOut = 60_000)
    public void countsReplicatedRangesOnce() {
        Network.Batches batches = Network.batches("4x7", "4x5");
        for (CutNetwork network : CutNetwork.values()) {
            TrainingRun expected = train(PLAIN, network.create(0), batches, 0.05f, 3);
            for (TrainerKind kind : List.of(TENSOR_3, TENSOR_4, MESH_2X3)) {
                int ranks = kind.mesh() == null ? kind.ranks() : 3;
                train(kind.clippedTo(0.05f), network.create(ranks), batches, 0.05f, 3)
                        .assertSame(expected, TOLERANCE);
            }
        }
    }

    /** A weight that is used twice has one gradient, the sum of both; tokens are cut. */
    @Test(timeOut = 60_000)
    public void countsTiedWeightsOnce() {
        Network.Batches batches = Network.batches("4x5x6", "4x5x5");
        TrainingRun expected = train(PLAIN, tied(), batches, 0.05f, 3);
        assertTrue(expected.getNumbers().get(0) > 0.05f, "" + expected.getNumbers());
        for (TrainerKind kind : List.of(TENSOR_3, MESH_2X2)) {
            train(kind.clippedTo(0.05f), tied(), batches, 0.05f, 3).assertSame(expected, TOLERANCE);
        }
    }

    private static Block tied() {
        Block shared = linear(6);
        return sequence(
                linear(6),
                new SequenceScatter(),
                shared,
                tanh(),
                shared,
                ColumnParallelLinear.builder().setUnits(8).optSequenceParallel(true).build(),
                tanh(),
                RowParallelLinear.builder().setUnits(5).optSequenceParallel(true).build(),
                new SequenceGather());
    }

    /** With no limit the norm is computed, and nothing is scaled; with none, not even that. */
    @Test(timeOut = 60_000)
    public void theNormAlone() {
        Network.Batches batches = Network.batches("4x7", "4x5");
        TrainingRun without = train(MESH_2X2, CutNetwork.UNEVEN.create(2), batches, 0, 3);
        float any = Float.POSITIVE_INFINITY;
        TrainingRun with =
                train(MESH_2X2.clippedTo(any), CutNetwork.UNEVEN.create(2), batches, any, 3);
        assertTrue(Float.isNaN(without.getNumbers().get(2)));
        assertTrue(with.getNumbers().get(2) > 0.05f, "" + with.getNumbers());
        assertAllBitEqual(with.getWeights(), without.getWeights(), "weight");
    }

    /** As in PyTorch: an infinite norm makes finite gradients zero, NaN makes all NaN. */
    @Test(timeOut = 60_000)
    public void aNormThatIsNotFinite() {
        for (float value : new float[] {Float.NaN, Float.POSITIVE_INFINITY}) {
            // a row of the weight each, and the second's gradient is finite
            Block block = linear(2);
            block.setInitializer(Initializer.ONES, Parameter.Type.WEIGHT);
            Network.Batches batches =
                    (manager, step) ->
                            new NDList[] {
                                new NDList(manager.ones(new Shape(2, 1))),
                                new NDList(
                                        manager.create(
                                                new float[] {value, 0, 0, 0}, new Shape(2, 2)))
                            };
            TrainingRun run = train(DATA_2.clippedTo(LIMIT), block, batches, LIMIT, 1);
            assertEquals(run.getNumbers().get(0), value);
            float[] weight = run.getWeights().get(0);
            assertTrue(Float.isNaN(weight[0]));
            assertEquals(weight[1], Float.isNaN(value) ? Float.NaN : 1);
        }
    }

    /** Notes the norms. */
    private static TrainingRun train(
            TrainerKind kind, Block block, Network.Batches batches, float limit, int steps) {
        return TrainingRun.of(
                kind,
                block,
                Configs.of(Loss.l2Loss(), Configs.sgd(0.5f)),
                batches.shapes(),
                (trainer, manager, norms) -> {
                    for (int step = 0; step < steps; step++) {
                        NDList[] batch = batches.make(manager, 0);
                        backward(trainer, batch[0], batch[1]);
                        double norm = kind.isParallel() ? 0 : clip(block, limit);
                        trainer.step();
                        if (trainer instanceof ParallelTrainer parallel) {
                            norm = parallel.getGradientNorm();
                        }
                        norms.add((float) norm);
                    }
                });
    }

    /** Limits the gradients of DJL's own trainer. */
    private static double clip(Block block, float limit) {
        double sum = 0;
        // a tied one is listed twice
        List<Parameter> parameters = block.getParameters().values().stream().distinct().toList();
        for (Parameter parameter : parameters) {
            for (float value : parameter.getArray().getGradient().toFloatArray()) {
                sum += (double) value * value;
            }
        }
        double norm = Math.sqrt(sum);
        for (Parameter parameter : parameters) {
            parameter.getArray().getGradient().muli(Math.min(1, limit / (norm + 1e-6)));
        }
        return norm;
    }

    @DataProvider
    public Object[][] belongings() {
        return new Object[][] {
            {sequence(linear(4), fused(5)), Configs.sgd(0.5f), "3x4"},
            {sequence(new EmbeddingBag(10, 4), column(5)), FusedTraining.adagrad(0.1f), "3x4:10"},
        };
    }

    /** What updates itself a part at a time has no gradient to be counted. */
    @Test(dataProvider = "belongings", timeOut = 60_000)
    public void fusedHeadsAndTables(Block block, Optimizer rule, String data) {
        DefaultTrainingConfig config = Configs.of(new VocabParallelCrossEntropyLoss(), rule);
        Network.Batches batches = Network.batches(data, "3:5");
        throwsArgument(
                () -> TrainingRun.of(TENSOR_2.clippedTo(LIMIT), block, config, batches, 1),
                "belongs to a block .. optFusedLoss(false)");
    }

    @Test
    public void badInput() {
        for (float norm : new float[] {0, -1, Float.NaN}) {
            throwsArgument(
                    () -> ParallelConfig.builder().optGradientClipNorm(norm),
                    "more than 0, not " + norm);
        }
    }
}
