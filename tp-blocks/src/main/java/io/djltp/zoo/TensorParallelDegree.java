package io.djltp.zoo;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;
import ai.djl.util.Preconditions;

import io.djltp.internal.parameters.ShapesOnly;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** Over how many ranks a model is cut, see {@link ParallelBlockFactory}. */
final class TensorParallelDegree {

    /** The name of the argument and of the option. */
    static final String NAME = "tensor_parallel_degree";

    private static final String MAX = "max";
    private static final int SEARCHED = 1024; // numbers of ranks that are tried

    private TensorParallelDegree() {}

    /** A parameter that is cut, with its shape in the network. */
    private record CutParameter(String name, ShardingStrategy strategy, Shape shape) {}

    /** Returns the degree that arguments ask for, or the folder of the model. */
    static String of(Map<String, ?> arguments, Path folder) throws IOException {
        Object argument = arguments.get(NAME);
        if (argument == null) {
            // DJL hands options to the engine and not to block factories
            return ModelFolder.properties(folder).getProperty("option." + NAME, "1").trim();
        }
        boolean whole = argument instanceof Double number && number % 1 == 0; // of a JSON file
        return whole ? "" + ((Double) argument).longValue() : argument.toString().trim();
    }

    /** Throws IllegalArgumentException if a text is neither a number from 1 on nor max. */
    static void check(String degree) {
        if (!MAX.equals(degree)) {
            parse(degree);
        }
    }

    private static int parse(String degree) {
        int ranks = 0;
        try {
            ranks = Integer.parseInt(degree);
        } catch (NumberFormatException e) {
            // ranks stay 0
        }
        Preconditions.checkArgument(
                ranks > 0, NAME + " must be a number of ranks, 1 or more, or max, not " + degree);
        return ranks;
    }

    /**
     * Returns the number of ranks.
     *
     * @param degree what is asked for
     * @param device the device of the model
     * @param gpus the GPUs of the machine
     * @param network the network
     * @param inputs the shapes of its inputs
     * @return the number of ranks, 1 or more
     * @throws IllegalArgumentException if there are not so many devices, or the model cannot be cut
     *     over so many ranks
     */
    static int resolve(String degree, Device device, int gpus, Block network, Shape... inputs) {
        int devices =
                device.isGpu()
                        ? gpus - device.getDeviceId()
                        : Runtime.getRuntime().availableProcessors();
        boolean max = MAX.equals(degree);
        int ranks = max ? devices : parse(degree);
        Preconditions.checkArgument(
                ranks <= devices || !device.isGpu(),
                ("%s %s needs as many GPUs, and from %s on there are %d: choose 1 to %4$d, or max,"
                                + " or load the model with optDevice(Device.cpu())")
                        .formatted(NAME, degree, device, devices));
        if (ranks == 1) {
            return 1;
        }
        List<CutParameter> cut = new ArrayList<>();
        ShapesOnly.read(network, DataType.FLOAT32, () -> find(network, "", cut), inputs);
        Preconditions.checkArgument(
                max || !cut.isEmpty(),
                ("%s %s: the model has no layer that can be cut over ranks, and its only degree is"
                                + " 1: leave %1$s out, or let the block factory build parallel"
                                + " layers, see TensorParallel.parallelize")
                        .formatted(NAME, degree));
        int most = cut.isEmpty() ? 1 : Math.min(ranks, SEARCHED);
        while (most > 1 && refusal(cut, most) != null) {
            most--;
        }
        String refusal = max ? null : refusal(cut, ranks);
        Preconditions.checkArgument(
                refusal == null,
                ("%s %s: %s%s The model can be cut over %d ranks at most: choose a degree up to"
                                + " that, or max.")
                        .formatted(
                                NAME,
                                degree,
                                refusal,
                                refusal == null || refusal.endsWith(".") ? "" : ".",
                                most));
        return max ? most : ranks;
    }

    private static void find(Block block, String path, List<CutParameter> cut) {
        if (block instanceof ShardedBlock sharded) {
            for (Pair<String, Parameter> named : block.getDirectParameters()) {
                ShardingStrategy strategy = sharded.getShardingStrategy(named.getValue());
                if (!strategy.isReplicated()) {
                    Shape shape = named.getValue().getArray().getShape();
                    cut.add(new CutParameter(path + named.getKey(), strategy, shape));
                }
            }
        }
        block.getChildren()
                .forEach(child -> find(child.getValue(), path + child.getKey() + "_", cut));
    }

    /** Returns why a network cannot be cut over so many ranks, or {@code null} if it can. */
    private static @Nullable String refusal(List<CutParameter> cut, int ranks) {
        for (CutParameter each : cut) {
            long longest = Arrays.stream(each.shape.getShape()).max().orElse(0);
            if (ranks > Math.max(longest, SEARCHED)) { // before a cut of so many parts is made
                return "Parameter %s %s cannot be cut over %d ranks."
                        .formatted(each.name, each.shape, ranks);
            }
            try {
                each.strategy.checkSplit(each.name, each.shape, ranks);
            } catch (IllegalArgumentException e) {
                return e.getMessage();
            }
        }
        return null;
    }
}
