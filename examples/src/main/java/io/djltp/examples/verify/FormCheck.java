package io.djltp.examples.verify;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.Pair;

import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.torch.Autograd;
import io.djltp.parameters.RankParameterStore;
import io.djltp.parameters.ShardedBlock;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.sharding.ShardingStrategy;

import java.io.PrintStream;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** Runs one form on all ranks and its unsharded form beside it, forward and backward. */
@SuppressWarnings("try") // a scope is used by being open
final class FormCheck {

    private static final int BATCH = 8;

    private final ParallelForm form;
    private final RankPool pool;
    private final NDManager manager;
    private final NDArray input;
    private final NDArray outputGradient;

    FormCheck(ParallelForm form, RankPool pool, NDManager manager) {
        this.form = form;
        this.pool = pool;
        this.manager = manager;
        input = manager.randomNormal(new Shape(BATCH, ParallelForm.FEATURES));
        outputGradient = manager.randomNormal(new Shape(BATCH, ParallelForm.UNITS));
    }

    /** What a forward and backward pass leaves behind: arrays by position. */
    private static final class Pass {
        final List<NDArray> parameters = new ArrayList<>();
        NDArray output;
        NDArray inputGradient;
        CollectiveCounts forward;
        CollectiveCounts backward;
    }

    FormResult run() {
        SequentialBlock serial = form.serial();
        SequentialBlock parallel = form.parallel();
        serial.initialize(manager, DataType.FLOAT32, input.getShape());
        parallel.initialize(manager, DataType.FLOAT32, input.getShape());
        Pass expected = pass(serial, new ParameterStore(manager, false), manager, null);
        List<Pass> passes = pool.run(context -> passOnRank(serial, parallel, context));

        FormResult result = new FormResult();
        result.form = form.title;
        result.shapes.put("input", input.getShape().toString());
        List<String> names = serial.getParameters().keys();
        for (int rank = 0; rank < pool.size(); rank++) {
            Pass pass = passes.get(rank);
            result.add("output", difference(pass.output, expected.output));
            result.add("input gradient", difference(pass.inputGradient, expected.inputGradient));
            for (int i = 0; i < names.size(); i++) {
                NDArray whole = expected.parameters.get(i).getGradient();
                NDArray part = pass.parameters.get(i).getGradient();
                ShardingStrategy strategy = strategy(parallel, i);
                NDArray shard = shard(whole, strategy, pool.getContext(rank), manager);
                String name = names.get(i);
                result.add(name + " gradient", difference(part, shard));
                String shapes = result.shapes.getOrDefault(name, whole.getShape() + " cut into");
                result.shapes.put(name, shapes + " " + part.getShape());
            }
        }
        result.shapes.put("output", expected.output.getShape().toString());
        result.collectivesForward = passes.get(0).forward.toString();
        result.collectivesBackward = passes.get(0).backward.toString();
        return result;
    }

    private Pass passOnRank(Block serial, Block parallel, ParallelContext context) {
        NDManager own = manager.newSubManager();
        RankParameterStore store = new RankParameterStore(own, context);
        List<Parameter> parameters = parallel.getParameters().values();
        for (int i = 0; i < parameters.size(); i++) {
            NDArray whole = serial.getParameters().get(i).getValue().getArray();
            store.setValue(parameters.get(i), shard(whole, strategy(parallel, i), context, own));
        }
        return pass(parallel, store, own, context);
    }

    private Pass pass(Block block, ParameterStore store, NDManager own, ParallelContext context) {
        Pass pass = new Pass();
        NDArray x = input.duplicate();
        x.attach(own);
        x.setRequiresGradient(true);
        CollectiveCounts start = counts(context);
        try (Autograd.GradMode mode = Autograd.gradMode(true)) {
            pass.output = block.forward(store, new NDList(x), true).singletonOrThrow();
        }
        CollectiveCounts middle = counts(context);
        Autograd.backward(pass.output, outputGradient);
        pass.forward = middle.minus(start);
        pass.backward = counts(context).minus(middle);
        pass.inputGradient = x.getGradient();
        for (Pair<String, Parameter> parameter : block.getParameters()) {
            pass.parameters.add(store.getValue(parameter.getValue(), x.getDevice(), true));
        }
        return pass;
    }

    private static CollectiveCounts counts(ParallelContext context) {
        return context == null ? new CollectiveCounts() : context.getCounts();
    }

    private static ShardingStrategy strategy(Block parallel, int index) {
        Parameter parameter = parallel.getParameters().get(index).getValue();
        for (Block child : parallel.getChildren().values()) {
            if (child instanceof ShardedBlock
                    && child.getDirectParameters().values().contains(parameter)) {
                return ((ShardedBlock) child).getShardingStrategy(parameter);
            }
        }
        return ShardingStrategy.replicate();
    }

    /** Returns a copy of a rank's shard. */
    static NDArray shard(
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

    static double difference(NDArray actual, NDArray expected) {
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            double scale = expected.abs().max().getFloat();
            return actual.sub(expected).abs().max().getFloat() / Math.max(scale, 1e-30);
        }
    }

    /** What the comparison of one form has found. */
    static final class FormResult {

        String form;
        boolean equal = true;

        /** Shapes over all ranks and of each rank's part, by name. */
        Map<String, String> shapes = new LinkedHashMap<>();

        /** Largest differences, relative to the largest value, by name. */
        Map<String, Double> differences = new LinkedHashMap<>();

        String collectivesForward;
        String collectivesBackward;

        void add(String name, double difference) {
            differences.merge(name, difference, Math::max);
            equal &= difference <= VerifyCommand.TOLERANCE;
        }

        void print(PrintStream out) {
            out.printf("%n%s%n", form);
            shapes.forEach((name, shape) -> out.printf("  %-22s %s%n", name, shape));
            differences.forEach(
                    (name, value) ->
                            out.printf(
                                    Locale.ROOT, "  %-22s differs by at most %.1e%n", name, value));
            out.printf("  %-22s %s%n", "collectives forward", collectivesForward);
            out.printf("  %-22s %s%n", "collectives backward", collectivesBackward);
        }
    }
}
