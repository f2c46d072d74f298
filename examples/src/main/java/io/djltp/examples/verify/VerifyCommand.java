package io.djltp.examples.verify;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;

import io.djltp.collective.CollectiveCounts;
import io.djltp.cut.Cut;
import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.train.DeviceOptions;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.Autograd;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;
import io.djltp.plan.Plan;
import io.djltp.plan.Style;
import io.djltp.plan.TensorParallel;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.training.ParallelTrainer;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.function.Function;
import java.util.function.Supplier;

/** Shows that parallel layers compute what the layers compute that they are cut from. */
@Command(
        name = "verify",
        description =
                "Compares column-parallel, row-parallel and column-activation-row layers on several"
                        + " ranks with the unsharded layers, forward and backward, and trainings of"
                        + " a classification head and of a transformer layer with those of one"
                        + " rank. The other side is always on the CPU.",
        mixinStandardHelpOptions = true)
@SuppressWarnings("try") // a scope is used by being open
public final class VerifyCommand implements Callable<Integer> {

    /**
     * Largest difference that counts as equal, relative to the largest value: a sum of some hundred
     * products in fp32 in another order.
     */
    private static final double TOLERANCE = 1e-5;

    private static final double CLEARLY_DIFFERENT = 1e-2; // what is no rounding
    private static final int BATCH = 8;
    private static final int FEATURES = 33; // no sizes are divisible by 2, 3 or 4 ranks
    private static final int HIDDEN = 129;
    private static final int UNITS = 65;
    private static final int TOKENS = 5;
    private static final int STEPS = 5;

    @Option(names = "--tp", defaultValue = "2", description = "Number of ranks (${DEFAULT-VALUE}).")
    private int ranks;

    @Mixin private final DeviceOptions where = new DeviceOptions();

    @Option(names = "--seed", defaultValue = "1", description = "Seed (${DEFAULT-VALUE}).")
    private int seed;

    @Option(names = "--json", description = "File for the figures.")
    private @Nullable Path json;

    private final PrintStream out = System.out;
    private boolean equal = true;

    /** Creates the command; its options are set by the command line. */
    public VerifyCommand() {}

    /**
     * A form of parallel layers, beside its unsharded form.
     *
     * @param title what it is called
     * @param hidden the units of a first layer, 0 for none
     * @param plan makes it parallel
     */
    private record Form(String title, int hidden, Plan plan) {

        static final List<Form> ALL =
                List.of(
                        new Form("column-parallel", 0, plan(Style.column().gatherOutput())),
                        new Form("row-parallel", 0, plan(Style.row().scatterInput())),
                        // nothing is communicated between the two layers
                        new Form("column, activation, row", HIDDEN, Plan.auto()));

        private static Plan plan(Style style) {
            return Plan.of("*Linear", style);
        }

        Block serial() {
            Block last = Linear.builder().setUnits(UNITS).build();
            return hidden == 0
                    ? new SequentialBlock().add(last)
                    : new SequentialBlock()
                            .add(Linear.builder().setUnits(hidden).build())
                            .add(Activation::gelu)
                            .add(last);
        }
    }

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        if (ranks < 1 || ranks > FEATURES) {
            throw new BadInputException(
                    "--tp must be from 1 to %s, the length of the smallest axis that"
                            + " is cut here, not %s",
                    FEATURES, ranks);
        }
        JsonFile.check("--json", json);
        LibTorch.load();
        Engine.getInstance().setRandomSeed(seed);
        where.check();
        where.checkDevices(null, ranks);
        ParallelConfig config =
                where.config(null, DeviceMesh.of(ParallelMode.TENSOR, ranks)).build();
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("ranks", ranks);
        try (RankPool pool = new RankPool(config);
                NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            report.put("forms", Form.ALL.stream().map(form -> check(form, pool, manager)).toList());
            report.put("activation", checkActivation(pool, manager));
        }
        report.put("trainings", Training.ALL.stream().map(each -> check(each, config)).toList());
        report.put("equal", equal);
        out.printf(
                Locale.ROOT,
                "%n%s: differences are relative to the largest value; up to %.0e is rounding%n",
                equal ? "EQUAL" : "DIFFERENT",
                TOLERANCE);
        JsonFile.write(json, report);
        return equal ? 0 : 1;
    }

    /** What a forward and backward pass leaves behind. */
    private record Pass(
            NDArray output,
            NDArray inputGradient,
            List<NDArray> parameters,
            CollectiveCounts forward,
            CollectiveCounts backward) {}

    /** Runs a form on all ranks and its unsharded form beside it, forward and backward. */
    private Map<String, Object> check(Form form, RankPool pool, NDManager manager) {
        NDArray input = manager.randomNormal(new Shape(BATCH, FEATURES));
        NDArray outputGradient = manager.randomNormal(new Shape(BATCH, UNITS));
        Block serial = form.serial();
        Block parallel = TensorParallel.parallelize(form.serial(), form.plan);
        serial.initialize(manager, DataType.FLOAT32, input.getShape());
        parallel.initialize(manager, DataType.FLOAT32, input.getShape());
        ParameterStore plain = new ParameterStore(manager, false);
        Pass expected = pass(serial, plain, input, outputGradient, null);
        List<Pass> passes =
                pool.run(
                        context -> {
                            NDManager own = manager.newSubManager(context.getDevice());
                            RankParameterStore store = new RankParameterStore(own, context);
                            for (int i = 0; i < parallel.getParameters().size(); i++) {
                                NDArray whole = serial.getParameters().get(i).getValue().getArray();
                                store.setValue(
                                        parallel.getParameters().get(i).getValue(),
                                        shard(whole, strategy(parallel, i), context, own));
                            }
                            return pass(parallel, store, input, outputGradient, context);
                        });
        Map<String, String> shapes = new LinkedHashMap<>(); // over all ranks, and of each
        Map<String, Double> differences = new LinkedHashMap<>(); // the largest
        shapes.put("input", input.getShape().toString());
        List<String> names = serial.getParameters().keys();
        for (int rank = 0; rank < pool.size(); rank++) {
            Pass pass = passes.get(rank);
            merge(differences, "output", pass.output, expected.output);
            merge(differences, "input gradient", pass.inputGradient, expected.inputGradient);
            for (int i = 0; i < names.size(); i++) {
                String name = names.get(i);
                NDArray whole = expected.parameters.get(i).getGradient();
                NDArray part = pass.parameters.get(i).getGradient();
                ParallelContext context = pool.getContext(rank);
                NDArray shard = shard(whole, strategy(parallel, i), context, manager);
                merge(differences, name + " gradient", part, shard);
                String before = shapes.getOrDefault(name, whole.getShape() + " cut into");
                shapes.put(name, before + " " + part.getShape());
            }
        }
        shapes.put("output", expected.output.getShape().toString());
        print(form.title, shapes, differences);
        out.printf("  %-22s %s%n", "collectives forward", passes.get(0).forward);
        out.printf("  %-22s %s%n", "collectives backward", passes.get(0).backward);
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("form", form.title);
        result.put("shapes", shapes);
        result.put("differences", differences);
        result.put("collectivesForward", passes.get(0).forward.toString());
        result.put("collectivesBackward", passes.get(0).backward.toString());
        return result;
    }

    private static Pass pass(
            Block block,
            ParameterStore store,
            NDArray input,
            NDArray outputGradient,
            @Nullable ParallelContext context) {
        Device device = store.getManager().getDevice();
        NDArray x = input.toDevice(device, true);
        x.attach(store.getManager());
        x.setRequiresGradient(true);
        CollectiveCounts start = counts(context);
        NDArray output;
        try (Autograd.GradMode mode = Autograd.gradMode(true)) {
            output = block.forward(store, new NDList(x), true).singletonOrThrow();
        }
        CollectiveCounts middle = counts(context);
        Autograd.backward(output, outputGradient.toDevice(device, false));
        CollectiveCounts backward = counts(context).minus(middle);
        List<NDArray> parameters = new ArrayList<>();
        block.getParameters()
                .values()
                .forEach(each -> parameters.add(store.getValue(each, x.getDevice(), true)));
        return new Pass(output, x.getGradient(), parameters, middle.minus(start), backward);
    }

    private static CollectiveCounts counts(@Nullable ParallelContext context) {
        return context == null ? new CollectiveCounts() : context.getCounts();
    }

    private static ShardingStrategy strategy(Block parallel, int index) {
        Parameter parameter = parallel.getParameters().get(index).getValue();
        for (Block child : parallel.getChildren().values()) {
            if (child instanceof ShardedBlock sharded
                    && child.getDirectParameters().values().contains(parameter)) {
                return sharded.getShardingStrategy(parameter);
            }
        }
        return ShardingStrategy.replicate();
    }

    /** Returns a copy of a rank's shard. */
    private static NDArray shard(
            NDArray whole, ShardingStrategy strategy, ParallelContext context, NDManager own) {
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            int rank = context.getRank();
            int size = context.getSize();
            Shape shape = whole.getShape();
            NDArray shard = own.create(strategy.shardShape(shape, rank, size));
            strategy.scatterRows(whole, 0, shape, shard, rank, size);
            return shard;
        }
    }

    private void merge(
            Map<String, Double> differences, String name, NDArray actual, NDArray expected) {
        double difference = difference(actual, expected);
        differences.merge(name, difference, Math::max);
        equal &= difference <= TOLERANCE;
    }

    private static double difference(NDArray actual, NDArray expected) {
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            double scale = expected.abs().max().getFloat();
            NDArray here = actual.toDevice(expected.getDevice(), false);
            return here.sub(expected).abs().max().getFloat() / Math.max(scale, 1e-30);
        }
    }

    /**
     * Shows that an activation commutes with the column split and not with the row split: it may be
     * computed on the slices of an output, and not on the summands of one, because f(a + b) is not
     * f(a) + f(b).
     */
    private Map<String, Double> checkActivation(RankPool pool, NDManager manager) {
        NDArray x = manager.randomNormal(new Shape(BATCH, FEATURES));
        NDArray weight = manager.randomNormal(new Shape(UNITS, FEATURES));
        ShardingStrategy byRows = ShardingStrategy.rowwise();
        ShardingStrategy byColumns = ShardingStrategy.columnwise();
        Cut units = byRows.cut(weight.getShape(), pool.size());
        Cut features = byColumns.cut(weight.getShape(), pool.size());
        NDArray expected = activated(x, weight);
        NDArray columns =
                onRanks(
                        pool,
                        context -> {
                            NDManager own = manager.newSubManager(context.getDevice());
                            NDArray all = x.toDevice(own.getDevice(), false);
                            NDArray y = activated(all, shard(weight, byRows, context, own));
                            return context.getMappings().gatherFromRegion(y, units);
                        });
        NDArray rows =
                onRanks(
                        pool,
                        context -> {
                            NDManager own = manager.newSubManager(context.getDevice());
                            NDArray all = x.toDevice(own.getDevice(), false);
                            NDArray part = context.getMappings().scatterToRegion(all, features);
                            NDArray y = activated(part, shard(weight, byColumns, context, own));
                            return context.getMappings().reduceFromRegion(y);
                        });
        double column = difference(columns, expected);
        double row = difference(rows, expected);
        equal &= column <= TOLERANCE && (pool.size() == 1 || row > CLEARLY_DIFFERENT);
        out.printf("%nactivation before the ranks' results are put together%n");
        String line = "  %-22s differs by %.1e: %s%n";
        out.printf(
                Locale.ROOT,
                line,
                "column split",
                column,
                "an activation commutes with the column split");
        out.printf(
                Locale.ROOT,
                line,
                "row split",
                row,
                "it does not commute with the row split"
                        + (pool.size() == 1 ? " (with one rank nothing is split)" : ""));
        return Map.of("columnDifference", column, "rowDifference", row);
    }

    /**
     * A network that is trained for some steps.
     *
     * @param title what it is called
     * @param body what is below its head
     * @param input the shape of a batch
     */
    private record Training(String title, Supplier<Block> body, Shape input) {

        static final List<Training> ALL =
                List.of(
                        new Training(
                                "training of a classification head",
                                () -> Linear.builder().setUnits(FEATURES).build(),
                                new Shape(BATCH, FEATURES)),
                        new Training(
                                "training of a transformer layer, recomputed",
                                Training::transformer,
                                new Shape(BATCH, TOKENS, 4 * FEATURES)));

        private static Block transformer() {
            return new SequentialBlock()
                    .add(
                            ParallelTransformerEncoderLayer.builder()
                                    .setAttention(
                                            ParallelMultiHeadAttention.builder()
                                                    .setEmbeddingSize(4 * FEATURES)
                                                    .setHeads(FEATURES)
                                                    .build())
                                    .setMlp(
                                            ParallelMlp.builder()
                                                    .setUnits(4 * FEATURES)
                                                    .setHiddenFeatures(HIDDEN)
                                                    .build())
                                    .setNorm(() -> LayerNorm.builder().axis(2).build())
                                    .optRecompute(true)
                                    .build())
                    .add(new LambdaBlock(in -> new NDList(in.head().mean(new int[] {1}))));
        }

        /** Returns the loss of each step, and then the outputs. */
        NDArray run(ParallelConfig config, NDManager manager, int seed) {
            Engine.getInstance().setRandomSeed(seed);
            DefaultTrainingConfig training =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                            .optOptimizer(OptimizerName.SGD.create(0.1f));
            try (Model model = Model.newInstance("verify", Device.cpu());
                    NDManager own = NDManager.newBaseManager(Device.cpu())) {
                model.setBlock(
                        new SequentialBlock()
                                .add(body.get())
                                .add(ClassificationHead.builder().setUnits(UNITS).build()));
                NDList data = new NDList(own.randomNormal(input));
                NDList labels = new NDList(own.arange(BATCH).toType(DataType.INT64, false));
                NDList results = new NDList();
                try (ParallelTrainer trainer = new ParallelTrainer(model, training, config)) {
                    trainer.initialize(input);
                    for (int i = 0; i < STEPS; i++) {
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList output = trainer.forward(data, labels);
                            NDArray loss = trainer.getLoss().evaluate(labels, output);
                            collector.backward(loss);
                            results.add(manager.create(new float[] {loss.getFloat()}));
                        }
                        trainer.step();
                    }
                    float[] last = trainer.evaluate(data).head().toFloatArray();
                    results.add(manager.create(last));
                }
                return NDArrays.concat(results);
            }
        }
    }

    private Map<String, Object> check(Training training, ParallelConfig config) {
        ParallelConfig one =
                ParallelConfig.builder()
                        .setMode(ParallelMode.TENSOR)
                        .setRanks(1)
                        .optDevices(List.of(Device.cpu()))
                        .build();
        try (NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            Map<String, Double> differences = new LinkedHashMap<>();
            NDArray expected = training.run(one, manager, seed);
            NDArray actual = training.run(config, manager, seed);
            merge(
                    differences,
                    "losses of " + STEPS + " steps",
                    actual.get(":" + STEPS),
                    expected.get(":" + STEPS));
            merge(differences, "outputs", actual.get(STEPS + ":"), expected.get(STEPS + ":"));
            print(training.title, Map.of(), differences);
            return Map.of("training", training.title, "differences", differences);
        }
    }

    private void print(String title, Map<String, String> shapes, Map<String, Double> differences) {
        out.printf("%n%s%n", title);
        shapes.forEach((name, shape) -> out.printf("  %-22s %s%n", name, shape));
        differences.forEach(
                (name, value) ->
                        out.printf(Locale.ROOT, "  %-22s differs by at most %.1e%n", name, value));
    }

    private static NDArray activated(NDArray x, NDArray weight) {
        return Activation.gelu(Linear.linear(x, weight).singletonOrThrow());
    }

    /** Returns what rank 0 computes, without a graph. */
    private static NDArray onRanks(RankPool pool, Function<ParallelContext, NDArray> part) {
        return pool.run(
                        context -> {
                            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                                return part.apply(context);
                            }
                        })
                .get(0);
    }
}
