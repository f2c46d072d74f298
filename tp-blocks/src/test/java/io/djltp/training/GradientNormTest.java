package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.ArrayAssert.assertAllClose;
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
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.SequenceGather;
import io.djltp.nn.SequenceScatter;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Configs;
import io.djltp.testing.CutNetwork;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Set;

/** The norm of all gradients counts each element once, and limits them as PyTorch does it. */
public class GradientNormTest {

    private static final double TOLERANCE = 1e-5;
    private static final float LIMIT = 0.2f;

    /** What three steps leave: the norms, and the weights. */
    private record Result(List<Float> norms, List<float[]> weights) {

        void assertSame(Result expected, String what) {
            assertClose(floats(norms), floats(expected.norms), TOLERANCE, what);
            assertAllClose(weights, expected.weights, TOLERANCE, what);
        }
    }

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
        try (NDManager manager = NDManager.newBaseManager()) {
            block.initialize(manager, DataType.FLOAT32, new Shape(6, 4));
            float[][] start = {
                f(24, 7, 11, 5, 10), f(6, 3, 5, 2, 10), f(18, 5, 13, 6, 10), f(3, 2, 3, 1, 10)
            };
            int number = 0;
            for (Parameter parameter : block.getParameters().values()) {
                parameter.getArray().set(FloatBuffer.wrap(start[number++]));
            }
            NDArray data = manager.create(f(24, 3, 7, 3, 3), new Shape(6, 4));
            NDArray labels = manager.create(f(18, 2, 5, 2, 2), new Shape(6, 3));
            Result result = train(kind, block, LIMIT, data, labels);
            assertClose(floats(result.norms), norms, TOLERANCE, "norms");
            float[] all = new float[weights.length];
            int at = 0;
            for (float[] array : result.weights) {
                System.arraycopy(array, 0, all, at, array.length);
                at += array.length;
            }
            assertClose(all, weights, TOLERANCE, "weights");
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
        for (CutNetwork network : CutNetwork.values()) {
            Result expected = trainOnRandom(PLAIN, network.create(0), 0.05f, 4, 7);
            for (TrainerKind kind : List.of(TENSOR_3, TENSOR_4, MESH_2X3)) {
                int ranks = kind.mesh() == null ? kind.ranks() : 3;
                trainOnRandom(kind, network.create(ranks), 0.05f, 4, 7)
                        .assertSame(expected, network + " on " + kind);
            }
        }
    }

    /** A weight that is used twice has one gradient, the sum of both; tokens are cut. */
    @Test(timeOut = 60_000)
    public void countsTiedWeightsOnce() {
        Result expected = trainOnRandom(PLAIN, tied(), 0.05f, 4, 5, 6);
        assertTrue(expected.norms.get(0) > 0.05f, "" + expected.norms);
        for (TrainerKind kind : List.of(TENSOR_3, MESH_2X2)) {
            trainOnRandom(kind, tied(), 0.05f, 4, 5, 6).assertSame(expected, "" + kind);
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
        TrainerKind kind = MESH_2X2;
        Result without = trainOnRandom(kind, CutNetwork.values()[0].create(2), 0, 4, 7);
        Result with =
                trainOnRandom(
                        kind, CutNetwork.values()[0].create(2), Float.POSITIVE_INFINITY, 4, 7);
        assertTrue(Float.isNaN(without.norms.get(2)));
        assertTrue(with.norms.get(2) > 0.05f, "" + with.norms);
        assertAllBitEqual(with.weights, without.weights, "weight");
    }

    /** As in PyTorch: an infinite norm makes finite gradients zero, NaN makes all NaN. */
    @Test(timeOut = 60_000)
    public void aNormThatIsNotFinite() {
        for (float value : new float[] {Float.NaN, Float.POSITIVE_INFINITY}) {
            Block block =
                    linear(2); // a row of the weight each, and the second's gradient is finite
            try (NDManager manager = NDManager.newBaseManager()) {
                block.initialize(manager, DataType.FLOAT32, new Shape(2, 1));
                float before = block.getParameters().valueAt(0).getArray().getFloat(1);
                NDArray data = manager.ones(new Shape(2, 1));
                NDArray labels = manager.create(new float[] {value, 0, 0, 0}, new Shape(2, 2));
                TrainerKind kind = DATA_2;
                Result result = train(kind, block, LIMIT, 1, data, labels);
                assertEquals(result.norms.get(0), value);
                float[] weight = result.weights.get(0);
                assertTrue(Float.isNaN(weight[0]));
                assertEquals(weight[1], Float.isNaN(value) ? Float.NaN : before);
            }
        }
    }

    /** What updates itself a part at a time has no gradient to be counted. */
    @Test(timeOut = 60_000)
    public void fusedHeadsAndTablesAreRefused() {
        Block table = new EmbeddingBag(10, 4);
        Object[][] cases = {
            {sequence(linear(4), fused(5)), sgd(), new Shape(3, 4)},
            {sequence(table, column(true, 5)), RowwiseAdagrad.builder().build(), new Shape(3, 4)},
        };
        for (Object[] each : cases) {
            try (NDManager manager = NDManager.newBaseManager()) {
                Shape shape = (Shape) each[2];
                NDArray data =
                        manager.ones(
                                shape, each[0] == cases[1][0] ? DataType.INT64 : DataType.FLOAT32);
                NDArray labels = manager.zeros(new Shape(3), DataType.INT64);
                DefaultTrainingConfig config =
                        new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                                .optOptimizer((Optimizer) each[1]);
                throwsArgument(
                        () -> {
                            try (Model model = Model.newInstance("net")) {
                                model.setBlock((Block) each[0]);
                                TrainerKind kind = TENSOR_2;
                                try (Trainer trainer =
                                        new ParallelTrainer(model, config, config(kind, LIMIT))) {
                                    trainer.initialize(shape);
                                    backward(trainer, data, labels);
                                    trainer.step();
                                }
                            }
                        },
                        "belongs to a block",
                        "optFusedLoss(false)");
            }
        }
    }

    @Test
    public void badInput() {
        for (float norm : new float[] {0, -1, Float.NaN}) {
            throwsArgument(
                    () -> ParallelConfig.builder().optGradientClipNorm(norm),
                    "more than 0, not " + norm);
        }
    }

    private static ParallelConfig config(TrainerKind kind, float limit) {
        ParallelConfig.Builder builder = ParallelConfig.builder();
        if (kind.mesh() == null) {
            builder.setMode(kind.mode()).setRanks(kind.ranks());
        } else {
            DeviceMesh mesh = kind.mesh();
            builder.setMesh(mesh);
        }
        return limit == 0 ? builder.build() : builder.optGradientClipNorm(limit).build();
    }

    private static Optimizer sgd() {
        return Configs.sgd(0.5f);
    }

    private static Result trainOnRandom(TrainerKind kind, Block block, float limit, long... shape) {
        Engine.getInstance().setRandomSeed(42);
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray data = random(manager, 1, shape);
            long[] target = shape.clone();
            target[target.length - 1] = CutNetwork.OUTPUTS;
            return train(kind, block, limit, data, random(manager, 2, target));
        }
    }

    private static Result train(
            TrainerKind kind, Block block, float limit, NDArray data, NDArray labels) {
        return train(kind, block, limit, 3, data, labels);
    }

    private static Result train(
            TrainerKind kind, Block block, float limit, int steps, NDArray data, NDArray labels) {
        Result result = new Result(new ArrayList<>(), new ArrayList<>());
        try (Model model = Model.newInstance("net")) {
            model.setBlock(block);
            DefaultTrainingConfig training = Configs.of(Loss.l2Loss(), sgd());
            try (Trainer trainer =
                    kind.isParallel()
                            ? new ParallelTrainer(model, training, config(kind, limit))
                            : model.newTrainer(training)) {
                trainer.initialize(data.getShape());
                for (int step = 0; step < steps; step++) {
                    backward(trainer, data, labels);
                    double norm = kind.isParallel() ? Double.NaN : clip(block, limit);
                    trainer.step();
                    result.norms.add(
                            (float)
                                    (kind.isParallel()
                                            ? ((ParallelTrainer) trainer).getGradientNorm()
                                            : norm));
                }
            }
            result.weights.addAll(weights(block));
        }
        return result;
    }

    /** Limits the gradients of DJL's own trainer. */
    private static double clip(Block block, float limit) {
        double sum = 0;
        Set<Parameter> parameters = Collections.newSetFromMap(new IdentityHashMap<>());
        parameters.addAll(block.getParameters().values()); // a tied one is listed twice
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
}
