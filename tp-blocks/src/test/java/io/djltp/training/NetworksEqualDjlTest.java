package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.flatten;
import static io.djltp.testing.Blocks.frozen;
import static io.djltp.testing.Blocks.frozenWeight;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.gelu;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.outputs;
import static io.djltp.testing.Blocks.parallel;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.scattered;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.GraphBlock.graph;
import static io.djltp.testing.Network.batches;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.DATA_4;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_3X2;
import static io.djltp.testing.TrainerKind.MIXED_1;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.MIXED_4;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNull;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.convolutional.Conv2d;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.nn.recurrent.GRU;
import ai.djl.nn.recurrent.LSTM;
import ai.djl.nn.recurrent.RecurrentBlock;
import ai.djl.training.loss.IndexLoss;
import ai.djl.training.loss.L2Loss;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.LossOptions;
import io.djltp.internal.loss.ShardedLoss;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.ParallelDropout;
import io.djltp.nn.RowParallelLinear;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.CutNetwork;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.Network.Batches;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BinaryOperator;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/**
 * Networks of many kinds have the results of DJL's own trainer in every mode: outputs, losses and
 * weights of four steps, at sizes that no number of ranks divides, with losses of any kind, with
 * fewer rows than ranks, and whatever is done to rows and slices that keeps them apart.
 */
public class NetworksEqualDjlTest {

    private static final Map<String, Row> ROWS = new LinkedHashMap<>();
    private static final TrainerKind[] UNEVEN = kinds(1, 2, 3, 4);
    private static final TrainerKind[] SEVERAL = kinds(2, 3);
    private static final TrainerKind[] FEW = {DATA_4, MIXED_4, MIXED_2, MESH_2X2, MESH_3X2};
    private static final TrainerKind[] CUT_ROWS = {DATA_2, MIXED_2, MESH_2X2, TENSOR_2};
    private static final int[] FEW_ROWS = {6, 1, 3, 2, 6}; // of the batches of the steps
    private static final Supplier<Loss> CROSS_ENTROPY = VocabParallelCrossEntropyLoss::new;
    private static final Supplier<Loss> SQUARES = HalfSquareLoss::new;

    /** A network, and the trainers that have the results of DJL's. */
    private static final class Row {
        private Network network;
        private TrainerKind[] kinds = kinds(1, 2, 3);
        private double tolerance = 1e-5;

        Row(Network network) {
            this.network = network;
        }

        Row on(TrainerKind... some) {
            kinds = some;
            return this;
        }

        Row within(double bound) {
            tolerance = bound;
            return this;
        }

        Row by(Supplier<Optimizer> rule) {
            network = network.by(rule);
            return this;
        }
    }

    private static TrainerKind[] kinds(int... sizes) {
        List<TrainerKind> kinds = TrainerKind.all(sizes);
        kinds.add(MESH_2X2);
        return kinds.toArray(TrainerKind[]::new);
    }

    private static Row add(
            String name, Function<Boolean, Block> block, Supplier<Loss> loss, Batches batches) {
        Row row = new Row(Network.of(block, loss, batches));
        assertNull(ROWS.put(name, row), name);
        return row;
    }

    private static Row classes(String name, Function<Boolean, Block> block) {
        return add(name, block, CROSS_ENTROPY, batches("6x5", "6:7"));
    }

    private static Row numbers(String name, Function<Boolean, Block> block) {
        return add(name, block, SQUARES, batches("6x5", "6x3"));
    }

    /** Seven rows, and layers of other lengths, that are uneven over 2 and more ranks. */
    private static Row uneven(String name, Function<Boolean, Block> block) {
        return add(name, block, SQUARES, batches("7x6", "7x3")).on(UNEVEN).within(5e-6);
    }

    @DataProvider
    public Object[][] networks() {
        return TrainerKind.rows(ROWS.keySet());
    }

    @Test(dataProvider = "networks", timeOut = 120_000)
    public void isEqual(String name) {
        if (name.contains("LSTM")) {
            Network.skipWhereConvolutionsAreWrong();
        }
        Row row = ROWS.get(name);
        row.network.assertEqual(row.tolerance, row.kinds);
    }

    private static Block mlp(boolean cut, long hidden, long units) {
        return sequence(first(cut, hidden), tanh(), row(cut, units));
    }

    private static GraphBlock columnAndRow(boolean cut, GraphBlock.Single function) {
        return graph(3, function).add("column", first(cut, 8), 5).add("row", row(cut, 3), 8);
    }

    /** A slice of the features, and one number for all of them that each rank computes alike. */
    static Block gated(boolean cut, Block gate) {
        return graph(
                        3,
                        (call, x) -> {
                            NDArray slice = call.call("column", x);
                            return call.call("row", slice.mul(call.call("gate", x)));
                        })
                .add("column", column(cut, 8), 5)
                .add("gate", gate, 5)
                .add("row", row(cut, 3), 8);
    }

    private static NDArray columnAndRow(GraphBlock.Call call, NDArray x) {
        return call.call("row", call.call("column", x).tanh());
    }

    // bodies, heads, columns and rows
    static {
        classes("head after body", cut -> sequence(linear(8), tanh(), head(7)));
        classes("fused head", cut -> sequence(linear(8), tanh(), fused(7)));
        numbers("column and row", cut -> sequence(linear(8), tanh(), mlp(cut, 9, 3)));
        classes(
                "head added before body",
                cut ->
                        graph(7, (call, x) -> call.call("head", call.call("body", x)))
                                .add("head", head(7), 8)
                                .add("body", sequence(linear(8), tanh()), 5));
        classes(
                "two branches concatenated",
                cut -> sequence(parallel(linear(4), sequence(linear(5), tanh())), head(7)));
        numbers(
                "column and row in branches",
                cut -> sequence(linear(6), sum(mlp(cut, 9, 4), mlp(cut, 5, 4)), linear(3)));
        classes(
                "a block twice in the body",
                cut -> {
                    Block shared = linear(5);
                    return sequence(shared, tanh(), shared, tanh(), head(7));
                });
        numbers(
                "residual around column and row",
                cut ->
                        graph(
                                        3,
                                        (call, x) ->
                                                call.call(
                                                        "out",
                                                        call.call("mlp", call.call("in", x))))
                                .add("out", linear(3), 6)
                                .add("mlp", sequence(first(cut, 8), gelu(), row(cut, 6)), 6)
                                .add("in", linear(6), 5));
        classes(
                "row and head after a gather",
                cut ->
                        sequence(
                                sequence(linear(6), first(cut, 8), gelu(), row(cut, 6)),
                                sequence(tanh(), column(cut, 7))));
        classes(
                "a second layer with a batch-sharded input",
                cut -> sequence(linear(6), first(cut, 8), gelu(), row(cut, 6), head(7)));
        numbers(
                "a learned scale of a slice",
                cut ->
                        columnAndRow(
                                        cut,
                                        (call, x) -> {
                                            NDArray y = call.call("column", x);
                                            return call.call(
                                                    "row", y.mul(call.value("scale")).tanh());
                                        })
                                .add("scale", new Shape(1, 1)));
        // a rank has a summand of the gate's gradient: of its rows and of its features
        numbers("a slice times a gate of the input", cut -> gated(cut, linear(1)))
                .on(TENSOR_2, TENSOR_3, MESH_2X2, MESH_3X2);
        numbers("a slice times a feature of the input", cut -> gated(cut, map(x -> x.get(":, :1"))))
                .on(TENSOR_2, MESH_2X2);
        numbers("LSTM", cut -> recurrent(cut, LSTM.builder(), flatten()));
        Block rows = sequence(reshape(-1, 4), tanh(), reshape(-1, 20));
        numbers("LSTM whose words become rows", cut -> recurrent(cut, LSTM.builder(), rows));
        numbers("GRU", cut -> recurrent(cut, GRU.builder(), flatten()));
        classes(
                "convolution",
                cut -> {
                    Conv2d.Builder conv = Conv2d.builder().setKernelShape(new Shape(1, 3));
                    Block block = conv.setFilters(4).build();
                    return sequence(reshape(-1, 1, 1, 5), block, tanh(), flatten(), head(7));
                });
        classes(
                "layer normalization",
                cut -> sequence(linear(8), LayerNorm.builder().build(), tanh(), head(7)));
        classes(
                        "batch normalization",
                        cut ->
                                sequence(
                                        linear(8, false),
                                        BatchNorm.builder().build(),
                                        tanh(),
                                        head(7)))
                .on(TENSOR_1, TENSOR_2, TENSOR_3);
        classes("frozen body", cut -> sequence(frozen(linear(8)), tanh(), head(7)));
        classes("frozen fused body", cut -> sequence(frozen(linear(8)), tanh(), fused(7)));
        numbers(
                "frozen column",
                cut -> sequence(linear(8), tanh(), frozen(first(cut, 9)), tanh(), row(cut, 3)));
        classes("frozen head", cut -> sequence(linear(8), tanh(), frozen(head(7))));
        numbers(
                "everything frozen but the last bias",
                cut -> {
                    Block column = frozen(first(cut, 9));
                    return sequence(
                            frozen(linear(8)), tanh(), column, tanh(), frozenWeight(row(cut, 3)));
                });
        numbers(
                "stopGradient in the body",
                cut -> sequence(linear(8), map(NDArray::stopGradient), linear(6), mlp(cut, 9, 3)));
        numbers(
                "stopGradient of a slice",
                cut -> sequence(first(cut, 9), map(NDArray::stopGradient), tanh(), row(cut, 3)));
        numbers(
                "in place",
                cut -> {
                    Block own = map(x -> x.addi(0.5f));
                    Block column = sequence(first(cut, 9), own, tanh());
                    return sequence(
                            linear(8),
                            map(x -> x.addi(1)),
                            column,
                            row(cut, 3),
                            map(x -> x.addi(1)));
                });
        numbers(
                "a copy attached to a manager of its own",
                cut -> sequence(linear(8), map(NetworksEqualDjlTest::attached), mlp(cut, 9, 3)));
        numbers(
                "identities",
                cut -> {
                    Block column = sequence(linear(8), map(x -> x), first(cut, 9));
                    return sequence(column, map(x -> x), row(cut, 3), map(x -> x));
                });
        numbers(
                "the parameter first, in the body",
                cut ->
                        columnAndRow(cut, (call, x) -> columnAndRow(call, call.value("w").mul(x)))
                                .add("w", new Shape(1, 5)));
        numbers(
                "the parameter first, in a slice",
                cut ->
                        columnAndRow(
                                        cut,
                                        (call, x) -> {
                                            NDArray y = call.call("column", x);
                                            return call.call("row", call.value("w").mul(y).tanh());
                                        })
                                .add("w", new Shape(1, 1)));
        numbers(
                "a tied weight of two replicated blocks",
                cut ->
                        columnAndRow(
                                        cut,
                                        (call, x) -> {
                                            NDArray w = call.value("w");
                                            return columnAndRow(call, x.matMul(w).tanh().matMul(w));
                                        })
                                .add("w", new Shape(5, 5)));
        add(
                "two inputs",
                cut ->
                        new GraphBlock(new Shape(3), NetworksEqualDjlTest::ofTwoInputs)
                                .add("a", linear(6), 5)
                                .add("b", linear(6), 4)
                                .add("column", first(cut, 8), 6)
                                .add("row", row(cut, 3), 8),
                SQUARES,
                batches("6x5 6x4", "6x3"));
        twoHeads("both cut", cut -> outputs(head(7), head(7)), CROSS_ENTROPY);
        twoHeads("both fused", cut -> outputs(fused(7), fused(7)), CROSS_ENTROPY);
        twoHeads("one of each", cut -> outputs(head(7), fused(7)), CROSS_ENTROPY);
        twoHeads("one plain", cut -> outputs(head(7), linear(7)), Loss::softmaxCrossEntropyLoss);
        LambdaBlock twice = new LambdaBlock(x -> new NDList(x.head(), x.head()));
        twoHeads("one output twice", cut -> sequence(head(7), twice), CROSS_ENTROPY);
        // it stays the model's when the arrays of the batch are freed
        aParameterAsAnOutput().on(TENSOR_1, TENSOR_2, TENSOR_3);
        numbers(
                        "a weight that was loaded turned, and so lies turned in memory",
                        cut -> {
                            Block turned = linear(3, false);
                            Shape shape = new Shape(5, 3);
                            turned.setInitializer(
                                    (m, s, t) -> m.arange(15f).sin().reshape(shape).transpose(),
                                    Parameter.Type.WEIGHT);
                            return turned;
                        })
                .by(() -> Configs.adam(0.1f))
                .on(TENSOR_1, DATA_2);
    }

    private static Block recurrent(
            boolean cut, RecurrentBlock.BaseBuilder<?> builder, Block after) {
        builder.setNumLayers(1).setStateSize(4).optReturnState(false);
        Block block =
                builder instanceof LSTM.Builder b ? b.build() : ((GRU.Builder) builder).build();
        return sequence(reshape(-1, 5, 1), block, after, mlp(cut, 9, 3));
    }

    private static NDArray attached(NDArray x) {
        NDArray y = x.add(x);
        y.attach(x.getManager().newSubManager());
        return y.tanh();
    }

    private static NDList ofTwoInputs(GraphBlock.Call call, NDList in) {
        NDArray x = call.call("a", in.get(0)).add(call.call("b", in.get(1)));
        return new NDList(columnAndRow(call, x.tanh()));
    }

    private static Row twoHeads(
            String name, Function<Boolean, Block> heads, Supplier<Loss> lossOfB) {
        return add(
                "two heads, " + name,
                cut -> sequence(linear(8), tanh(), heads.apply(cut)),
                () -> ofTwo(CROSS_ENTROPY.get(), lossOfB.get()),
                batches("6x5", "6:7 6:7"));
    }

    private static Loss ofTwo(Loss a, Loss b) {
        return new SimpleCompositeLoss()
                .addLoss(new IndexLoss(a, 0, 0))
                .addLoss(new IndexLoss(b, 1, 1));
    }

    private static Row aParameterAsAnOutput() {
        return add(
                "a parameter as an output",
                cut ->
                        new GraphBlock(
                                        new Shape(3),
                                        (call, in) -> {
                                            NDArray w = call.value("w");
                                            NDArray y = call.call("in", in.head()).mul(w);
                                            return new NDList(call.call("out", y), w);
                                        })
                                .add("in", linear(4), 5)
                                .add("out", linear(3), 4)
                                .add("w", new Shape(1, 4)),
                () -> ofTwo(SQUARES.get(), SQUARES.get()),
                batches("6x5", "6x3 1x4"));
    }

    /** Its axis 0 is not the batch; the model has it still. */
    @Test(timeOut = 60_000)
    public void aParameterAsAnOutputWhereTheBatchIsCut() {
        Network network = ROWS.get("a parameter as an output").network;
        network.assertRefused(DATA_2, "use TENSOR mode");
        network.assertRefused(MESH_2X2, "use TENSOR mode");
    }

    // uneven sizes
    static {
        for (boolean bias : new boolean[] {true, false}) {
            uneven(
                    "biases " + bias,
                    cut -> {
                        Block head = cut ? unevenHead(5, bias).build() : linear(5, bias);
                        Block row = cut ? unevenRow(bias).build() : linear(3, bias);
                        return sequence(linear(8, bias), tanh(), head, tanh(), row);
                    });
            add(
                            "DJL's loss of gathered logits, bias " + bias,
                            cut -> {
                                ColumnParallelLinear.Builder head = unevenHead(9, bias);
                                return sequence(
                                        linear(8),
                                        cut ? head.optGatherOutput(true).build() : linear(9, bias));
                            },
                            Loss::softmaxCrossEntropyLoss,
                            batches("7x6", "7:9"))
                    .on(UNEVEN)
                    .within(5e-6);
        }
        // the batch is cut again after the head: what follows is data parallel
        uneven(
                "a data-parallel tail",
                cut -> {
                    Block tail = sequence(cut ? scattered(4) : linear(4), tanh(), linear(3));
                    return sequence(linear(8), tanh(), first(cut, 5), tanh(), tail);
                });
        uneven(
                "row-parallel layers of whole inputs",
                cut -> {
                    RowParallelLinear.Builder first = unevenRow(true).setUnits(5);
                    first.optInputIsParallel(false).optBatchShardedInput(true);
                    Block last =
                            cut
                                    ? unevenRow(false).optInputIsParallel(false).build()
                                    : linear(3, false);
                    return sequence(
                            linear(8), tanh(), cut ? first.build() : linear(5), tanh(), last);
                });
        // they are spread over the parts unevenly; a part may have no others
        for (int ignored : new int[] {3, 5}) {
            add(
                            ignored + " rows that do not count",
                            cut -> sequence(linear(8), head(9)),
                            CROSS_ENTROPY,
                            (manager, step) -> {
                                NDList[] batch = batches("7x6", "7:9").make(manager, step);
                                long[] labels = batch[1].head().toLongArray();
                                Arrays.fill(labels, 0, ignored, LossOptions.DEFAULT_IGNORE_INDEX);
                                return new NDList[] {batch[0], new NDList(manager.create(labels))};
                            })
                    .on(UNEVEN)
                    .within(5e-6);
        }
        // layers so large that their products may be another kernel's: 300 rows, 256, 32 and a rest
        add(
                        "large layers",
                        cut -> {
                            Block last = cut ? gathered(519) : linear(519);
                            return sequence(first(cut, 1030), relu(), row(cut, 520), tanh(), last);
                        },
                        Loss::l2Loss,
                        batches("4x75x513", "4x75x519"))
                .on(TENSOR_1, TENSOR_2, DATA_2, MESH_2X2);
        // six ranks hold two of the features, the others one
        add(
                        "64 ranks",
                        cut -> sequence(column(cut, 70), relu(), row(cut, 12)),
                        SQUARES,
                        batches("8x10", "8x12"))
                .on(new TrainerKind(ParallelMode.TENSOR, 64));
    }

    private static ColumnParallelLinear.Builder unevenHead(long units, boolean bias) {
        return newColumn(units).optBatchShardedInput(true).optBias(bias);
    }

    private static RowParallelLinear.Builder unevenRow(boolean bias) {
        return RowParallelLinear.builder().setUnits(3).optBias(bias);
    }

    // losses: wherever the rows and the classes are, that of the whole batch
    static {
        loss("sum", () -> of((y, p) -> p.sub(y).square().sum().sqrt()));
        loss("mean of what a mask leaves", () -> of(NetworksEqualDjlTest::masked));
        loss("all pairs of rows", () -> of(NetworksEqualDjlTest::pairs));
        loss("a subclass of a mean", SumOfSquares::new);
        loss("a mean", Loss::l2Loss);
        // a row becomes three words, of which the first ones count
        add(
                        "words of which a mask leaves some",
                        cut -> sequence(reshape(-1, 3, 2), linear(6), tanh(), linear(7)),
                        MaskedCrossEntropy::new,
                        batches("7x6", "7x3:7 7x3"))
                .on(DATA_2, DATA_3, TENSOR_2);
        // axis 0 of the output is rows and words in one
        add(
                        "rows that become several",
                        cut -> sequence(reshape(-1, 2), linear(6), tanh(), linear(7)),
                        Loss::softmaxCrossEntropyLoss,
                        batches("7x6", "21:7"))
                .on(DATA_2, DATA_3, TENSOR_2);
        add(
                        "a composite loss with ignored labels",
                        cut -> sequence(linear(6), tanh(), head(7)),
                        () ->
                                new SimpleCompositeLoss()
                                        .addLoss(new VocabParallelCrossEntropyLoss("a", 2))
                                        .addLoss(new VocabParallelCrossEntropyLoss("b", 5)),
                        batches("7x5", "7:7"))
                .on(SEVERAL);
        // the second loss is of what each rank has its rows of only
        auxiliary("features of the body", () -> outputs(head(7), map(NDArray::square)));
        auxiliary("a plain branch beside the head", () -> outputs(head(7), linear(6)));
        auxiliary("a plain branch beside a fused head", () -> outputs(fused(7), linear(6)));
        add(
                        "outputs of all layers",
                        cut -> sequence(linear(6), tanh(), head(7)).setReturnIntermediate(true),
                        () ->
                                new SimpleCompositeLoss()
                                        .addLoss(new IndexLoss(CROSS_ENTROPY.get(), 2, 0))
                                        .addLoss(new IndexLoss(SQUARES.get(), 1, 1)),
                        batches("7x5", "7:7 7x6"))
                .on(SEVERAL);
        // logits may be scaled and given other leading axes on their way to the loss
        classes(
                        "logits that are scaled",
                        cut ->
                                graph(7, (call, x) -> call.call("head", x).mul(call.value("scale")))
                                        .add("head", head(7), 5)
                                        .add("scale", new Shape(1, 1)))
                .on(SEVERAL);
        classes(
                        "logits that are reshaped",
                        cut -> sequence(linear(6), head(7), map(x -> x.expandDims(1))))
                .on(SEVERAL);
        // a softmax over the rows is no mean over them: no rank can compute that of its own
        for (int axis : new int[] {0, -2, 1, -1}) {
            softmaxOver(axis, "7x6");
        }
        for (int axis : new int[] {0, -3, 1, -1}) {
            softmaxOver(axis, "7x3x2");
        }
    }

    private static void loss(String name, Supplier<Loss> loss) {
        add(
                        "loss: " + name,
                        cut -> sequence(linear(6), tanh(), mlp(cut, 8, 3)),
                        loss,
                        batches("7x5", "7x3"))
                .on(SEVERAL);
    }

    private static Loss of(BinaryOperator<NDArray> function) {
        return new Loss("own") {
            @Override
            public NDArray evaluate(NDList labels, NDList predictions) {
                return function.apply(labels.head(), predictions.head());
            }
        };
    }

    private static NDArray masked(NDArray y, NDArray p) {
        NDArray mask = y.gt(0).toType(p.getDataType(), false);
        return p.sub(y).square().mul(mask).sum().div(mask.sum().maximum(1));
    }

    private static NDArray pairs(NDArray y, NDArray p) {
        NDArray a = p.expandDims(0).sub(p.expandDims(1)).square();
        NDArray b = y.expandDims(0).sub(y.expandDims(1)).square();
        return a.sub(b).square().mean().add(p.square().mean());
    }

    /** A sum, though its class says that it is a mean. */
    private static final class SumOfSquares extends L2Loss {

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            return predictions.head().sub(labels.head()).square().sum().sqrt();
        }
    }

    /** DJL's {@code MaskedSoftmaxCrossEntropyLoss} needs an operation that PyTorch has not. */
    private static final class MaskedCrossEntropy extends Loss {

        MaskedCrossEntropy() {
            super("masked");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            NDArray z = predictions.head().logSoftmax(-1);
            NDArray ids = labels.head().expandDims(-1);
            NDArray mask = labels.get(1).gt(0).toType(z.getDataType(), false);
            NDArray losses = z.gather(ids, -1).squeeze(-1).neg().mul(mask);
            return losses.sum().div(mask.sum().maximum(1));
        }
    }

    private static void auxiliary(String name, Supplier<Block> last) {
        add(
                        "an auxiliary loss on " + name,
                        cut -> sequence(linear(6), tanh(), last.get()),
                        () -> ofTwo(CROSS_ENTROPY.get(), SQUARES.get()),
                        batches("7x5", "7:7 7x6"))
                .on(SEVERAL);
    }

    private static void softmaxOver(int axis, String shape) {
        Block shaped = shape.equals("7x6") ? map(x -> x) : reshape(-1, 3, 2);
        add(
                        "softmax cross entropy over axis " + axis + " of " + shape,
                        cut -> sequence(linear(6), first(cut, 4), row(cut, 6), tanh(), shaped),
                        () -> new SoftmaxCrossEntropyLoss("loss", 1, axis, false, true),
                        (manager, step) -> {
                            NDList[] batch = batches("7x5", "7x6").make(manager, step);
                            NDArray targets = batch[1].head().softmax(1);
                            NDArray all = shape.equals("7x6") ? targets : targets.reshape(7, 3, 2);
                            return new NDList[] {batch[0], new NDList(all)};
                        })
                .on(DATA_3, MIXED_2, MESH_2X2, TENSOR_2);
    }

    // fewer rows than there are ranks, such as the last batch of an epoch
    static {
        for (boolean fused : new boolean[] {false, true}) {
            add(
                            "few rows, a head, fused " + fused,
                            cut -> sequence(linear(6), tanh(), fused ? fused(9) : head(9)),
                            CROSS_ENTROPY,
                            batches(FEW_ROWS, "Rx5", "R:9"))
                    .on(FEW);
        }
        add(
                        "few rows from the first on",
                        cut -> sequence(linear(6), tanh(), mlp(cut, 8, 3)),
                        SQUARES,
                        batches(new int[] {1, 3, 2, 6, 6}, "Rx5", "Rx3"))
                .on(FEW);
        add(
                        "few rows, two heads",
                        cut -> sequence(linear(6), tanh(), outputs(head(9), fused(9))),
                        () -> ofTwo(CROSS_ENTROPY.get(), CROSS_ENTROPY.get()),
                        batches(FEW_ROWS, "Rx5", "R:9 R:9"))
                .on(FEW);
        // a sum scattered to the ranks' rows is joined with what branches off before it, on a rank
        // without a row too
        add(
                        "few rows, branches around an MLP",
                        cut -> {
                            Block residual = sum(map(x -> x), mlp());
                            Block joined = parallel(linear(3), mlp());
                            return sequence(
                                    linear(6), tanh(), joined, linear(6), residual, head(9));
                        },
                        CROSS_ENTROPY,
                        batches(FEW_ROWS, "Rx5", "R:9"))
                .on(MIXED_4, MIXED_2);
        add(
                        "few rows, branches behind an embedding of several tokens",
                        cut -> sequence(embedding(), sum(linear(6), mlp()), head(9)),
                        CROSS_ENTROPY,
                        batches(FEW_ROWS, "Rx2:11", "Rx2:9"))
                .on(MIXED_4, MIXED_2);
        // the table is updated by the rows that the batch has used
        add(
                        "few rows, a table under row-wise Adagrad",
                        cut -> sequence(new EmbeddingBag(20, 4), linear(6), tanh(), fused(9)),
                        CROSS_ENTROPY,
                        batches(FEW_ROWS, "Rx3:20", "R:9"))
                .by(() -> FusedTraining.adagrad(0.1f))
                .on(FEW);
    }

    private static Block mlp() {
        return Blocks.mlp(6, 7).optBatchSharded(true).build();
    }

    private static Block embedding() {
        return Blocks.table(11, 6).build();
    }

    // arrays of the rank's own may be changed in place; of one rank, those of the batch
    static {
        ofInput("the batch changed in place", x -> x.muli(0.5f)).on(TENSOR_1, DATA_1, MIXED_1);
        TrainerKind[] some = {TENSOR_2, TENSOR_3, DATA_2, MIXED_3, MESH_2X2};
        ofInput("a copy changed in place", x -> x.duplicate().muli(0.5f)).on(some);
        ofInput("a product changed in place", x -> x.mul(0.5f).subi(0.1f)).on(some);
        ofInput("an input that is closed", NetworksEqualDjlTest::closed).on(some);
    }

    private static Row ofInput(String name, UnaryOperator<NDArray> operation) {
        return add(
                name,
                cut -> sequence(map(operation), linear(6), first(cut, 4), row(cut, 3)),
                SQUARES,
                batches("7x6", "7x3"));
    }

    private static NDArray closed(NDArray x) {
        NDArray doubled = x.add(x);
        x.close();
        return doubled;
    }

    // rows that are joined for a while, or lie along another axis, and stay in their order
    static {
        ofRows("taken apart", x -> halves(x.concat(x.mul(2), 0).tanh()));
        ofRows("an axis for the two", NetworksEqualDjlTest::meanOfTwo);
        ofRows("along the features", x -> x.concat(x.mul(2), 1).flip(1).get(":, :6"));
        ofRows("along time", x -> x.reshape(-1, 3, 2).swapAxes(0, 1).flip(0).mean(new int[] {0}));
        ofRows("row by row", NetworksEqualDjlTest::rowByRow);
        ofRows("there and back", x -> x.flip(0).tanh().flip(0));
        // the two of a row lie together: what the error for others says instead
        becomeTwo("stacked", x -> x.stack(x.mul(2), 1).reshape(-1, x.getShape().get(1)));
        becomeTwo("swapped", NetworksEqualDjlTest::swapped);
    }

    private static void ofRows(String name, UnaryOperator<NDArray> operation) {
        uneven(
                        "rows " + name,
                        cut -> sequence(linear(6), map(operation), first(cut, 4), row(cut, 3)))
                .on(CUT_ROWS)
                .within(1e-5);
    }

    private static void becomeTwo(String name, UnaryOperator<NDArray> operation) {
        add(
                        "rows that become two, " + name,
                        cut -> sequence(linear(6), tanh(), linear(3), map(operation)),
                        SQUARES,
                        batches("7x6", "14x3"))
                .on(DATA_2, MESH_2X2, TENSOR_2);
    }

    private static NDArray swapped(NDArray x) {
        long rows = x.getShape().get(0);
        NDArray two = x.concat(x.mul(2), 0).reshape(2, rows, -1);
        return two.swapAxes(0, 1).reshape(-1, x.getShape().get(1));
    }

    private static NDArray halves(NDArray x) {
        long rows = x.getShape().get(0) / 2;
        return x.get(new NDIndex().addSliceDim(0, rows))
                .add(x.get(new NDIndex().addSliceDim(rows, 2 * rows)));
    }

    private static NDArray meanOfTwo(NDArray x) {
        NDArray both = x.concat(x.square(), 0).tanh();
        return both.reshape(2, x.getShape().get(0), -1).mean(new int[] {0});
    }

    private static NDArray rowByRow(NDArray x) {
        NDList rows = new NDList();
        for (long i = 0; i < x.getShape().get(0); i++) {
            rows.add(x.get(new NDIndex().addSliceDim(i, i + 1)).tanh());
        }
        return rows.size() == 1 ? rows.head() : NDArrays.concat(rows);
    }

    // slices of the features of tokens, [rows, 3, 12/p], followed to heads and other axes
    static {
        TrainerKind six = new TrainerKind(ParallelMode.TENSOR, 6); // a head each
        Map<String, UnaryOperator<NDArray>> exact = new LinkedHashMap<>();
        exact.put("softmax of a head", Slices.ofHeads(x -> x.mul(x.softmax(3))));
        exact.put("norm of a head", Slices.ofHeads(x -> x.sub(x.mean(new int[] {3}, true))));
        exact.put("softmax over tokens", x -> x.mul(x.softmax(1)));
        exact.put("softmax over tokens of columns", Slices.ofColumns(x -> x.mul(x.softmax(2))));
        exact.put(
                "all tokens in one row",
                x -> x.reshape(Slices.ROWS, -1).tanh().reshape(x.getShape()));
        exact.put("pool over tokens", Slices.ofColumns(NetworksEqualDjlTest::pooled));
        exact.put("attention", NetworksEqualDjlTest::attention);
        exact.put(
                "softmax of a head of columns",
                Slices.ofColumns(
                        x ->
                                x.reshape(Slices.ROWS, -1, Slices.DIM, 3)
                                        .softmax(2)
                                        .reshape(x.getShape())));
        exact.forEach(
                (name, function) ->
                        ROWS.put(
                                "slices: " + name,
                                new Row(Slices.network(() -> map(function))).on(TENSOR_2, six)));
        // three queries share keys and values
        ROWS.put("slices: grouped heads", new Row(Slices.grouped(1)).on(TENSOR_2));
    }

    private static NDArray pooled(NDArray x) {
        Shape one = new Shape(1);
        return x.getNDArrayInternal().avgPool(new Shape(3), one, one, false, true);
    }

    /** The heads are axes of the batch of two products; the rows are one with them. */
    private static NDArray attention(NDArray x) {
        NDArray heads = Slices.heads(x).swapAxes(1, 2); // [rows, heads, tokens, dim]
        NDArray weights = heads.matMul(heads.tanh().swapAxes(2, 3)).softmax(-1);
        return weights.matMul(heads).swapAxes(1, 2).reshape(x.getShape());
    }

    // layers over the tokens of a slice, [rows, 5, 8/p]. Of a batch of one row, or of a rank's part
    // of one, libtorch drops the axis of the rows for the product
    static {
        TrainerKind[] all = {
            MIXED_2,
            TENSOR_2,
            TENSOR_3,
            new TrainerKind(ParallelMode.TENSOR, 8),
            DATA_2,
            MESH_2X2,
            MESH_3X2
        };
        for (int[] rows : new int[][] {{4, 4, 1, 4, 4}, {3, 1, 2, 3, 1}, {1, 2, 3, 1, 5}}) {
            Block turned = map(x -> x.transpose(0, 2, 1));
            tokens(rows, "a linear layer", () -> sequence(turned, linear(5), turned)).on(all);
            tokens(
                            rows,
                            "a parameter of a block",
                            (x, w) -> x.transpose(0, 2, 1).matMul(w).swapAxes(1, 2))
                    .on(all);
            // in MIXED mode, where the rows are gathered on the way, it must not come first
            tokens(rows, "a parameter in front", (x, w) -> w.matMul(x))
                    .on(Arrays.copyOfRange(all, 1, all.length));
            // what the product does to the axes can be written in a network, too
            tokens(rows, "columns of all rows in one matrix", NetworksEqualDjlTest::columns)
                    .on(all);
        }
    }

    private static NDArray columns(NDArray x, NDArray w) {
        NDArray columns = x.transpose(0, 2, 1);
        NDArray y = columns.reshape(-1, 5).matMul(w);
        return y.reshape(columns.getShape()).transpose(0, 2, 1);
    }

    /** A block with a parameter of its own, [5, 5]. */
    private static Row tokens(int[] rows, String name, BinaryOperator<NDArray> function) {
        Supplier<Block> product =
                () ->
                        new GraphBlock(
                                        new Shape(5, 8),
                                        (call, in) ->
                                                new NDList(
                                                        function.apply(in.head(), call.value("w"))))
                                .add("w", new Shape(5, 5));
        return tokens(rows, name, product);
    }

    private static Row tokens(int[] rows, String name, Supplier<Block> mixer) {
        return add(
                "over tokens, rows " + Arrays.toString(rows) + ", " + name,
                cut -> sequence(first(cut, 8), mixer.get(), row(cut, 3)),
                SQUARES,
                batches(rows, "Rx5x4", "Rx5x3"));
    }

    // one number for each row of a weight, whose columns are cut unevenly or in many ranges
    static {
        for (CutNetwork network : CutNetwork.values()) {
            for (int ranks : new int[] {2, 3}) {
                add(
                                "row-wise Adagrad, " + ranks + " ranks, " + network,
                                cut -> network.create(cut ? ranks : 0),
                                SQUARES,
                                batches("6x7", "6x5"))
                        .by(() -> FusedTraining.adagrad(0.1f))
                        .on(new TrainerKind(ParallelMode.TENSOR, ranks))
                        .within(2e-5);
            }
        }
    }

    /** Masks follow the place of a feature in the whole, whatever rank has it. */
    @Test(timeOut = 60_000)
    public void dropoutOfRanges() {
        TrainingRun one = dropout(TENSOR_1, Cut.ofLengths(12));
        for (TrainerKind kind : List.of(TENSOR_2, TENSOR_3)) {
            Cut balanced = Cut.balanced(6, kind.ranks());
            Cut ranges =
                    Cut.of(
                            12,
                            kind.ranks(),
                            rank -> {
                                ShardRange own = balanced.getRange(rank);
                                return List.of(new ShardRange(6 + own.start(), own.length()), own);
                            });
            dropout(kind, ranges).assertSame(one, 5e-6);
        }
    }

    private static TrainingRun dropout(TrainerKind kind, Cut cut) {
        ColumnParallelLinear.Builder column = ColumnParallelLinear.builder().setUnits(12);
        RowParallelLinear.Builder row = RowParallelLinear.builder().setUnits(5);
        Block block =
                sequence(
                        column.optShardingStrategy(ShardingStrategy.rowwise(cut)).build(),
                        ParallelDropout.builder().optRate(0.4f).optSeed(4).build(),
                        row.optShardingStrategy(ShardingStrategy.columnwise(cut)).build());
        Optimizer sgd = Configs.sgd(0.1f);
        return TrainingRun.of(
                kind, block, Configs.of(SQUARES.get(), sgd), batches("6x7", "6x5"), 3);
    }

    /** Whether each rank can compute the loss of its rows, and nothing is gathered. */
    @DataProvider
    public Object[][] means() {
        return new Object[][] {
            {-1, true, new Shape(5, 4), true},
            {1, true, new Shape(5, 4), true},
            {-1, false, new Shape(5, 4), true},
            {0, false, new Shape(5, 4), false},
            {-2, false, new Shape(5, 4), false},
            {-2, false, new Shape(5, 4, 3), true},
            {2, true, new Shape(5, 3, 4), true},
            {-1, false, new Shape(5, 1), true},
            {0, false, new Shape(5, 1), false},
        };
    }

    @Test(dataProvider = "means")
    public void meansOverRows(int axis, boolean sparse, Shape predictions, boolean expected) {
        Loss loss = new SoftmaxCrossEntropyLoss("loss", 1, axis, sparse, true);
        assertEquals(ShardedLoss.isMean(loss, predictions), expected);
    }
}
