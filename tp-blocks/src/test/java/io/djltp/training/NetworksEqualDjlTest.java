package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.flatten;
import static io.djltp.testing.Blocks.frozen;
import static io.djltp.testing.Blocks.frozenWeight;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.gelu;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.outputs;
import static io.djltp.testing.Blocks.parallel;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.scattered;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.convolutional.Conv2d;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.nn.recurrent.GRU;
import ai.djl.nn.recurrent.LSTM;
import ai.djl.training.loss.IndexLoss;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;

import io.djltp.head.LossOptions;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Supplier;

/** Networks of many kinds have the results of DJL's own trainer in every mode. */
public class NetworksEqualDjlTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 7;
    private static final Network.Batches REGRESSION = Network.regression(ROWS, FEATURES, 3);
    private static final Network.Batches CLASSIFICATION =
            Network.classification(ROWS, FEATURES, CLASSES);

    private static final Map<String, Network> NETWORKS = new LinkedHashMap<>();
    private static final Map<String, Network> UNEVEN = new LinkedHashMap<>();

    static {
        classification("head after body", cut -> sequence(linear(8), tanh(), head(CLASSES)));
        classification("fused head", cut -> sequence(linear(8), tanh(), fused(CLASSES)));
        regression(
                "column and row",
                cut -> sequence(linear(8), tanh(), first(cut, 9), tanh(), row(cut, 3)));
        classification(
                "head added before body",
                cut ->
                        new GraphBlock(
                                        new Shape(CLASSES),
                                        (call, in) -> {
                                            NDArray x = call.call("body", in.head());
                                            return new NDList(call.call("head", x));
                                        })
                                .add("head", head(CLASSES), 8)
                                .add("body", sequence(linear(8), tanh()), FEATURES));
        classification(
                "two branches concatenated",
                cut -> sequence(parallel(linear(4), sequence(linear(5), tanh())), head(CLASSES)));
        regression(
                "column and row in branches",
                cut ->
                        sequence(
                                linear(6),
                                sum(
                                        sequence(first(cut, 9), tanh(), row(cut, 4)),
                                        sequence(first(cut, 5), tanh(), row(cut, 4))),
                                linear(3)));
        classification(
                "a block twice in the body",
                cut -> {
                    Block shared = linear(FEATURES);
                    return sequence(shared, tanh(), shared, tanh(), head(CLASSES));
                });
        regression(
                "residual around column and row",
                cut ->
                        new GraphBlock(
                                        new Shape(3),
                                        (call, in) -> {
                                            NDArray x = call.call("in", in.head());
                                            NDArray y = call.call("mlp", x);
                                            return new NDList(call.call("out", y));
                                        })
                                .add("out", linear(3), 6)
                                .add("mlp", sequence(first(cut, 8), gelu(), row(cut, 6)), 6)
                                .add("in", linear(6), FEATURES));
        classification(
                "row and head after a gather",
                cut ->
                        sequence(
                                linear(6),
                                first(cut, 8),
                                gelu(),
                                row(cut, 6),
                                tanh(),
                                column(cut, CLASSES)));
        classification(
                "a second layer with a batch-sharded input",
                cut -> sequence(linear(6), first(cut, 8), gelu(), row(cut, 6), head(CLASSES)));
        regression(
                "a learned scale of a slice",
                cut ->
                        new GraphBlock(
                                        new Shape(3),
                                        (call, in) -> {
                                            NDArray x = call.call("column", in.head());
                                            x = x.mul(call.value("scale")).tanh();
                                            return new NDList(call.call("row", x));
                                        })
                                .add("column", first(cut, 8), FEATURES)
                                .add("row", row(cut, 3), 8)
                                .add("scale", new Shape(1, 1)));
        regression(
                "LSTM",
                cut ->
                        sequence(
                                reshape(-1, 5, 1),
                                LSTM.builder()
                                        .setNumLayers(1)
                                        .setStateSize(4)
                                        .optReturnState(false)
                                        .build(),
                                flatten(),
                                first(cut, 9),
                                tanh(),
                                row(cut, 3)));
        regression(
                "LSTM whose words become rows",
                cut ->
                        sequence(
                                reshape(-1, 5, 1),
                                LSTM.builder()
                                        .setNumLayers(1)
                                        .setStateSize(4)
                                        .optReturnState(false)
                                        .build(),
                                reshape(-1, 4),
                                tanh(),
                                reshape(-1, 20),
                                first(cut, 9),
                                tanh(),
                                row(cut, 3)));
        regression(
                "GRU",
                cut ->
                        sequence(
                                reshape(-1, 5, 1),
                                GRU.builder()
                                        .setNumLayers(1)
                                        .setStateSize(4)
                                        .optReturnState(false)
                                        .build(),
                                flatten(),
                                first(cut, 9),
                                tanh(),
                                row(cut, 3)));
        classification(
                "convolution",
                cut ->
                        sequence(
                                reshape(-1, 1, 1, 5),
                                Conv2d.builder()
                                        .setKernelShape(new Shape(1, 3))
                                        .setFilters(4)
                                        .build(),
                                tanh(),
                                flatten(),
                                head(CLASSES)));
        classification(
                "layer normalization",
                cut -> sequence(linear(8), LayerNorm.builder().build(), tanh(), head(CLASSES)));
        classification("frozen body", cut -> sequence(frozen(linear(8)), tanh(), head(CLASSES)));
        classification(
                "frozen fused body", cut -> sequence(frozen(linear(8)), tanh(), fused(CLASSES)));
        regression(
                "frozen column",
                cut -> sequence(linear(8), tanh(), frozen(first(cut, 9)), tanh(), row(cut, 3)));
        classification("frozen head", cut -> sequence(linear(8), tanh(), frozen(head(CLASSES))));
        regression(
                "everything frozen but the last bias",
                cut ->
                        sequence(
                                frozen(linear(8)),
                                tanh(),
                                frozen(first(cut, 9)),
                                tanh(),
                                frozenWeight(row(cut, 3))));
        regression(
                "stopGradient in the body",
                cut ->
                        sequence(
                                linear(8),
                                map(NDArray::stopGradient),
                                linear(6),
                                first(cut, 9),
                                tanh(),
                                row(cut, 3)));
        regression(
                "stopGradient of a slice",
                cut -> sequence(first(cut, 9), map(NDArray::stopGradient), tanh(), row(cut, 3)));
        regression(
                "in place",
                cut ->
                        sequence(
                                linear(8),
                                map(x -> x.addi(1)),
                                first(cut, 9),
                                map(x -> x.addi(0.5f)),
                                tanh(),
                                row(cut, 3),
                                map(x -> x.addi(1))));
        regression(
                "a copy attached to a manager of its own",
                cut ->
                        sequence(
                                linear(8),
                                map(
                                        x -> {
                                            NDArray y = x.add(x);
                                            y.attach(x.getManager().newSubManager());
                                            return y.tanh();
                                        }),
                                first(cut, 9),
                                tanh(),
                                row(cut, 3)));
        regression(
                "identities",
                cut ->
                        sequence(
                                linear(8),
                                map(x -> x),
                                first(cut, 9),
                                map(x -> x),
                                row(cut, 3),
                                map(x -> x)));
        regression(
                "the parameter first, in the body",
                cut ->
                        new GraphBlock(
                                        new Shape(3),
                                        (call, in) -> {
                                            NDArray x = call.value("w").mul(in.head());
                                            x = call.call("column", x).tanh();
                                            return new NDList(call.call("row", x));
                                        })
                                .add("column", first(cut, 8), FEATURES)
                                .add("row", row(cut, 3), 8)
                                .add("w", new Shape(1, FEATURES)));
        regression(
                "the parameter first, in a slice",
                cut ->
                        new GraphBlock(
                                        new Shape(3),
                                        (call, in) -> {
                                            NDArray x = call.call("column", in.head());
                                            x = call.value("w").mul(x).tanh();
                                            return new NDList(call.call("row", x));
                                        })
                                .add("column", first(cut, 8), FEATURES)
                                .add("row", row(cut, 3), 8)
                                .add("w", new Shape(1, 1)));
        regression(
                "a tied weight of two replicated blocks",
                cut ->
                        new GraphBlock(
                                        new Shape(3),
                                        (call, in) -> {
                                            NDArray w = call.value("w");
                                            NDArray x = in.head().matMul(w).tanh().matMul(w);
                                            x = call.call("column", x).tanh();
                                            return new NDList(call.call("row", x));
                                        })
                                .add("column", first(cut, 8), FEATURES)
                                .add("row", row(cut, 3), 8)
                                .add("w", new Shape(FEATURES, FEATURES)));
        NETWORKS.put(
                "two inputs",
                Network.of(
                        cut ->
                                new GraphBlock(
                                                new Shape(3),
                                                (call, in) -> {
                                                    NDArray x = call.call("a", in.get(0));
                                                    x = x.add(call.call("b", in.get(1)));
                                                    x = call.call("column", x.tanh()).tanh();
                                                    return new NDList(call.call("row", x));
                                                })
                                        .add("a", linear(6), FEATURES)
                                        .add("b", linear(6), 4)
                                        .add("column", first(cut, 8), 6)
                                        .add("row", row(cut, 3), 8),
                        HalfSquareLoss::new,
                        (manager, step) ->
                                new NDList[] {
                                    new NDList(
                                            TrainingRun.random(manager, step, ROWS, FEATURES),
                                            TrainingRun.random(manager, 70 + step, ROWS, 4)),
                                    new NDList(TrainingRun.random(manager, 30 + step, ROWS, 3))
                                }));
        NETWORKS.put("two heads, both cut", twoHeads(cut -> head(CLASSES), cut -> head(CLASSES)));
        NETWORKS.put(
                "two heads, both fused", twoHeads(cut -> fused(CLASSES), cut -> fused(CLASSES)));
        NETWORKS.put(
                "two heads, one of each", twoHeads(cut -> head(CLASSES), cut -> fused(CLASSES)));
        NETWORKS.put(
                "two heads, one plain",
                twoHeads(
                        cut -> head(CLASSES),
                        cut -> linear(CLASSES),
                        Loss::softmaxCrossEntropyLoss));
        NETWORKS.put(
                "one output twice",
                twoLosses(
                        cut ->
                                sequence(
                                        linear(8),
                                        tanh(),
                                        head(CLASSES),
                                        new LambdaBlock(x -> new NDList(x.head(), x.head()))),
                        VocabParallelCrossEntropyLoss::new));
    }

    static {
        for (boolean bias : new boolean[] {true, false}) {
            uneven(
                    "biases " + bias,
                    cut ->
                            sequence(
                                    linear(8, bias),
                                    tanh(),
                                    cut ? unevenHead(5).optBias(bias).build() : linear(5, bias),
                                    tanh(),
                                    cut ? unevenRow(3).optBias(bias).build() : linear(3, bias)));
            UNEVEN.put(
                    "DJL's loss of gathered logits, bias " + bias,
                    Network.of(
                            cut ->
                                    sequence(
                                            linear(8),
                                            cut
                                                    ? unevenHead(9)
                                                            .optBias(bias)
                                                            .optGatherOutput(true)
                                                            .build()
                                                    : linear(9, bias)),
                            Loss::softmaxCrossEntropyLoss,
                            Network.classification(7, 6, 9)));
        }
        // the batch is cut again after the head: what follows is data parallel
        uneven(
                "a data-parallel tail",
                cut ->
                        sequence(
                                linear(8),
                                tanh(),
                                first(cut, 5),
                                tanh(),
                                cut ? scattered(4) : linear(4),
                                tanh(),
                                linear(3)));
        uneven(
                "row-parallel layers of whole inputs",
                cut ->
                        sequence(
                                linear(8),
                                tanh(),
                                cut
                                        ? unevenRow(5)
                                                .optInputIsParallel(false)
                                                .optBatchShardedInput(true)
                                                .build()
                                        : linear(5),
                                tanh(),
                                cut
                                        ? unevenRow(3)
                                                .optBias(false)
                                                .optInputIsParallel(false)
                                                .build()
                                        : linear(3, false)));
        // they are spread over the parts unevenly; a part may have no others
        for (int ignored : new int[] {3, 5}) {
            UNEVEN.put(
                    ignored + " rows that do not count",
                    Network.of(
                            cut -> sequence(linear(8), head(9)),
                            VocabParallelCrossEntropyLoss::new,
                            (manager, step) -> {
                                NDList[] batch =
                                        Network.classification(7, 6, 9).make(manager, step);
                                long[] labels = batch[1].head().toLongArray();
                                Arrays.fill(labels, 0, ignored, LossOptions.DEFAULT_IGNORE_INDEX);
                                batch[1] = new NDList(manager.create(labels));
                                return batch;
                            }));
        }
    }

    /** Seven rows, and layers of other lengths, that are uneven over 2 and more ranks. */
    private static void uneven(String name, Function<Boolean, Block> block) {
        UNEVEN.put(name, Network.of(block, HalfSquareLoss::new, Network.regression(7, 6, 3)));
    }

    private static ColumnParallelLinear.Builder unevenHead(long units) {
        return ColumnParallelLinear.builder().setUnits(units).optBatchShardedInput(true);
    }

    private static RowParallelLinear.Builder unevenRow(long units) {
        return RowParallelLinear.builder().setUnits(units);
    }

    private static Object[][] rows(Map<String, Network> networks) {
        return networks.keySet().stream().map(name -> new Object[] {name}).toArray(Object[][]::new);
    }

    @DataProvider
    public Object[][] unevenNetworks() {
        return rows(UNEVEN);
    }

    @Test(dataProvider = "unevenNetworks", timeOut = 120_000)
    public void unevenPartsAreEqual(String name) {
        TrainerKind[] kinds =
                Arrays.stream(TrainerKind.parallel())
                        .map(kind -> (TrainerKind) kind[0])
                        .toArray(TrainerKind[]::new);
        UNEVEN.get(name).assertEqual(5e-6, kinds);
    }

    @DataProvider
    public Object[][] networks() {
        return rows(NETWORKS);
    }

    @Test(dataProvider = "networks", timeOut = 120_000)
    public void isEqual(String name) {
        List<Object[]> kinds = new ArrayList<>(List.of(TrainerKind.parallel(1, 2, 3)));
        kinds.add(new Object[] {TrainerKind.mesh(2, 2)});
        NETWORKS.get(name).assertEqual(kinds.toArray(new Object[0][]));
    }

    @Test(timeOut = 60_000)
    public void batchNormalizationInTensorMode() {
        Network net =
                Network.of(
                        cut ->
                                sequence(
                                        linear(8, false),
                                        BatchNorm.builder().build(),
                                        tanh(),
                                        head(CLASSES)),
                        VocabParallelCrossEntropyLoss::new,
                        CLASSIFICATION);
        net.assertEqual(
                new TrainerKind(ParallelMode.TENSOR, 1),
                new TrainerKind(ParallelMode.TENSOR, 2),
                new TrainerKind(ParallelMode.TENSOR, 3));
    }

    /** It stays the model's when the arrays of the batch are freed. */
    @Test(timeOut = 60_000)
    public void aParameterAsAnOutputInTensorMode() {
        aParameterAsAnOutput()
                .assertEqual(
                        new TrainerKind(ParallelMode.TENSOR, 1),
                        new TrainerKind(ParallelMode.TENSOR, 2),
                        new TrainerKind(ParallelMode.TENSOR, 3));
    }

    /** Its axis 0 is not the batch; the model has it still. */
    @Test(timeOut = 60_000)
    public void aParameterAsAnOutputWhereTheBatchIsCut() {
        TrainerKind data = new TrainerKind(ParallelMode.DATA, 2);
        for (TrainerKind kind : new TrainerKind[] {data, TrainerKind.mesh(2, 2)}) {
            aParameterAsAnOutput().assertRefused(kind, "use TENSOR mode");
        }
    }

    private static Network aParameterAsAnOutput() {
        return Network.of(
                cut ->
                        new GraphBlock(
                                        new Shape(3),
                                        (call, in) -> {
                                            NDArray w = call.value("w");
                                            NDArray y = call.call("in", in.head()).mul(w);
                                            return new NDList(call.call("out", y), w);
                                        })
                                .add("in", linear(4), FEATURES)
                                .add("out", linear(3), 4)
                                .add("w", new Shape(1, 4)),
                () ->
                        new SimpleCompositeLoss()
                                .addLoss(new IndexLoss(new HalfSquareLoss(), 0, 0))
                                .addLoss(new IndexLoss(new HalfSquareLoss(), 1, 1)),
                (manager, step) ->
                        new NDList[] {
                            new NDList(TrainingRun.random(manager, step, ROWS, FEATURES)),
                            new NDList(
                                    TrainingRun.random(manager, 30 + step, ROWS, 3),
                                    TrainingRun.random(manager, 60 + step, 1, 4))
                        });
    }

    private static void classification(String name, Function<Boolean, Block> block) {
        NETWORKS.put(name, Network.of(block, VocabParallelCrossEntropyLoss::new, CLASSIFICATION));
    }

    private static void regression(String name, Function<Boolean, Block> block) {
        NETWORKS.put(name, Network.of(block, HalfSquareLoss::new, REGRESSION));
    }

    private static Network twoHeads(Function<Boolean, Block> a, Function<Boolean, Block> b) {
        return twoHeads(a, b, VocabParallelCrossEntropyLoss::new);
    }

    private static Network twoHeads(
            Function<Boolean, Block> a, Function<Boolean, Block> b, Supplier<Loss> lossOfB) {
        return twoLosses(
                cut -> sequence(linear(8), tanh(), outputs(a.apply(cut), b.apply(cut))), lossOfB);
    }

    private static Network twoLosses(Function<Boolean, Block> block, Supplier<Loss> lossOfB) {
        return Network.of(
                block,
                () -> {
                    Loss first = new IndexLoss(new VocabParallelCrossEntropyLoss(), 0, 0);
                    Loss second = new IndexLoss(lossOfB.get(), 1, 1);
                    return new SimpleCompositeLoss().addLoss(first).addLoss(second);
                },
                (manager, step) ->
                        new NDList[] {
                            new NDList(TrainingRun.random(manager, step, ROWS, FEATURES)),
                            new NDList(
                                    TrainingRun.labels(manager, 30 + step, ROWS, CLASSES),
                                    TrainingRun.labels(manager, 60 + step, ROWS, CLASSES))
                        });
    }
}
