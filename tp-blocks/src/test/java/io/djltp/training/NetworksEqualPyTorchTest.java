package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.ArrayAssert.floats;
import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.outputs;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_3X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.loss.AbstractCompositeLoss;
import ai.djl.training.loss.Loss;
import ai.djl.util.Pair;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Networks in all modes against PyTorch 1.13 in float64: the losses of three steps of SGD, and then
 * the sum and the sum of the squares of each parameter. Parameters and data are {@link #number}s,
 * so that the networks can be written down in any language.
 */
public class NetworksEqualPyTorchTest {

    private static final int ROWS = 7;
    private static final int FEATURES = 5;
    private static final int CLASSES = 9;

    private static final double[] CLASSIFIER = {
        2.338016675650396, 2.2338665451857116, 2.173966923565381, -0.6526305464213621,
        -0.6684663332981554, -0.9130434782608694, -0.19565217391304351, 2.4393492971036568,
        0.424259468478427, 4.515503947200886, 0.5578733910210323
    };
    private static final double[] IGNORED = {
        2.214781277804356, 2.0799218257432748, 2.0210031409360383, -0.643893177924055,
        -0.66994231053143, -0.9130434782608701, -0.19565217391304351, 2.435318660742702,
        0.4239656695808389, 4.509523991991493, 0.6507501669661596
    };
    private static final double[] PAIRS = {
        6.400286530510577, 5.229880189287182, 4.2038911367789735, -0.641930510411796,
        -0.6566690108238573, -1.2914231056756291, -0.39485702894721836, -0.6057183694525894,
        -0.6086956521739131, -0.9832989237393024, 1.440087435210086, 2.458019667904712,
        0.2329846201469495, 4.1237940037197385, 0.5691961120876178, 2.7337565788869043,
        0.33837429111531186, 1.9330835242541746, 0.6200590294023359
    };

    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aClassifier(TrainerKind kind) {
        Loss loss = new VocabParallelCrossEntropyLoss();
        for (Block head : new Block[] {head(CLASSES), fused(CLASSES)}) {
            check(kind, sequence(linear(6), tanh(), head), loss, 1, CLASSIFIER);
        }
    }

    /** Every third class does not count. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void labelsThatDoNotCount(TrainerKind kind) {
        Loss loss = new VocabParallelCrossEntropyLoss();
        for (Block head : new Block[] {head(CLASSES), fused(CLASSES)}) {
            check(kind, sequence(linear(6), tanh(), head), loss, 3, IGNORED);
        }
    }

    /** The mean over all pairs of rows of one branch, and a norm over all rows of another one. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void twoBranches(TrainerKind kind) {
        Block block =
                sequence(
                        linear(6),
                        tanh(),
                        outputs(sequence(first(true, 8), tanh(), row(true, 4)), linear(4)));
        check(kind, block, new PairsAndNorm(), 1, PAIRS);
    }

    private static final class PairsAndNorm extends AbstractCompositeLoss {

        PairsAndNorm() {
            super("pairs and norm");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            NDArray a = predictions.get(0);
            NDArray pairs = a.expandDims(1).sub(a.expandDims(0)).square().mean();
            return pairs.add(predictions.get(1).sub(1).square().sum().sqrt());
        }

        @Override
        protected Pair<NDList, NDList> inputForComponent(int i, NDList labels, NDList outputs) {
            return new Pair<>(labels, outputs);
        }
    }

    private static void check(
            TrainerKind kind, Block block, Loss loss, int ignored, double[] expected) {
        int[] seed = {0};
        Shape input = new Shape(ROWS, FEATURES);
        for (Parameter.Type type : List.of(Parameter.Type.WEIGHT, Parameter.Type.BIAS)) {
            block.setInitializer((m, s, t) -> m.create(numbers(++seed[0], s), s), type);
        }
        Network.Batches batches =
                (manager, step) ->
                        new NDList[] {
                            new NDList(manager.create(numbers(40 + step, input), input)),
                            new NDList(manager.create(labels(step, ignored)))
                        };
        TrainingRun run;
        try (NDManager manager = NDManager.newBaseManager()) {
            block.initialize(manager, DataType.FLOAT32, input);
            run = TrainingRun.of(kind, block, Configs.of(loss, Configs.sgd(0.1f)), batches, 3);
        }
        List<Float> actual = new ArrayList<>(run.getNumbers());
        List<Float> squares = new ArrayList<>();
        for (float[] weights : run.getWeights()) {
            double sum = 0;
            double square = 0;
            for (float weight : weights) {
                sum += weight;
                square += (double) weight * weight;
            }
            actual.add((float) sum);
            squares.add((float) square);
        }
        actual.addAll(squares);
        float[] exact = new float[expected.length];
        for (int i = 0; i < exact.length; i++) {
            exact[i] = (float) expected[i];
        }
        assertClose(floats(actual), exact, 2e-6, "losses, sums and squares");
    }

    private static long[] labels(int step, int ignored) {
        long[] labels = new long[ROWS];
        for (int i = 0; i < ROWS; i++) {
            labels[i] = (i * 5 + step) % CLASSES;
            labels[i] = ignored > 1 && labels[i] % ignored == 0 ? -100 : labels[i];
        }
        return labels;
    }

    private static float[] numbers(int seed, Shape shape) {
        float[] numbers = new float[(int) shape.size()];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = (float) number(seed, i);
        }
        return numbers;
    }

    private static double number(int seed, int i) {
        return (i * 7 + seed * 13) % 23 / 23.0 - 0.5;
    }

    @DataProvider
    public Object[][] wide() {
        return TrainerKind.rows(TENSOR_1, TENSOR_3, DATA_3, MIXED_3, MESH_3X2);
    }

    /**
     * A step in float64 is exact in float64: of {@code y = x W^T} with the mean of {@code (t - y)^2
     * / 2} and a rate of 1, {@code W - mean (y - t)^T x}. DJL's own trainer takes no step in
     * float64: its check of the first gradients reads float32.
     */
    @Test(dataProvider = "wide", timeOut = 60_000)
    public void aStepInFloat64IsExact(TrainerKind kind) {
        ColumnParallelLinear.Builder builder = ColumnParallelLinear.builder().setUnits(4);
        builder.optBias(false).optBatchShardedInput(true).optGatherOutput(true);
        Block layer = builder.build();
        layer.setInitializer(new ConstantInitializer(0.125f), Parameter.Type.WEIGHT);
        double loss;
        double[] actual;
        try (Model model = Model.newInstance("wide");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(layer);
            model.setDataType(DataType.FLOAT64);
            DefaultTrainingConfig config = Configs.of(Loss.l2Loss(), Configs.sgd(1));
            try (Trainer trainer = kind.open(model, config, new Shape(5, 3))) {
                NDList labels = new NDList(wide(manager, 7, 4));
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDList output = trainer.forward(new NDList(wide(manager, 1, 3)), labels);
                    NDArray value = trainer.getLoss().evaluate(labels, output);
                    collector.backward(value);
                    loss = value.getDouble();
                }
                trainer.step();
            }
            actual = layer.getParameters().valueAt(0).getArray().toDoubleArray();
        }
        double[] expected = new double[12];
        assertEquals(loss, byDefinition(expected), 1e-14);
        assertEquals(actual, expected, 1e-14);
    }

    /** Row by row; returns the loss. */
    private static double byDefinition(double[] weight) {
        Arrays.fill(weight, 0.125);
        double mean = 0;
        for (int row = 0; row < 5; row++) {
            for (int unit = 0; unit < 4; unit++) {
                double error = -number(7, row * 4 + unit);
                for (int i = 0; i < 3; i++) {
                    error += 0.125 * number(1, row * 3 + i);
                }
                mean += error * error / 2 / 20;
                for (int i = 0; i < 3; i++) {
                    weight[unit * 3 + i] -= error * number(1, row * 3 + i) / 20;
                }
            }
        }
        return mean;
    }

    private static NDArray wide(NDManager manager, int seed, int features) {
        double[] values = new double[5 * features];
        for (int i = 0; i < values.length; i++) {
            values[i] = number(seed, i);
        }
        return manager.create(values, new Shape(5, features));
    }
}
