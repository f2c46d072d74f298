package io.djltp.zoo;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import io.djltp.parameters.ShapesOnly;
import io.djltp.parameters.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * Over how many ranks a model is cut: a number, or {@code max}, which is all GPUs from the model's
 * on, or on CPU one rank for each processor that the JVM has, but no more than the model can be cut
 * over. The name is that of DJL Serving.
 *
 * <p>It is taken from the argument of the model, {@code optArgument("tensor_parallel_degree", 2)};
 * without one from {@code option.tensor_parallel_degree} in the {@code serving.properties} of the
 * model's folder; without that it is 1.
 */
public final class TensorParallelDegree {

    /** The name of the argument and of the option. */
    public static final String NAME = "tensor_parallel_degree";

    private static final String MAX = "max";

    private final String asked;

    private TensorParallelDegree(String asked) {
        this.asked = asked;
    }

    /**
     * Returns the degree that is asked for.
     *
     * @param arguments the arguments of the model
     * @param folder the folder of the model
     * @return the degree
     * @throws IOException if the folder's properties cannot be read
     */
    static TensorParallelDegree of(Map<String, ?> arguments, Path folder) throws IOException {
        Object argument = arguments.get(NAME);
        if (argument == null) {
            // DJL hands options to the engine and not to block factories
            argument = ModelFolder.properties(folder).getProperty("option." + NAME);
        }
        return new TensorParallelDegree(argument == null ? "1" : text(argument));
    }

    /** A number of a JSON file is a double. */
    private static String text(Object argument) {
        if (argument instanceof Double && (Double) argument % 1 == 0) {
            return Long.toString(((Double) argument).longValue());
        }
        return argument.toString().trim();
    }

    /**
     * Checks what may be a degree.
     *
     * @param degree a number, or max
     * @throws IllegalArgumentException if it is neither
     */
    static void check(String degree) {
        TensorParallelDegree asked = new TensorParallelDegree(degree.trim());
        if (!MAX.equals(asked.asked)) {
            asked.parse();
        }
    }

    /**
     * Returns the number of ranks.
     *
     * @param device the device of the model
     * @param gpus the GPUs of the machine
     * @param limit over how many ranks the model can be cut
     * @return the number of ranks, 1 or more
     * @throws IllegalArgumentException if there are not so many devices, or the model cannot be cut
     *     over so many ranks
     */
    int resolve(Device device, int gpus, CutLimit limit) {
        boolean onGpu = device.isGpu();
        int devices =
                onGpu ? gpus - device.getDeviceId() : Runtime.getRuntime().availableProcessors();
        if (MAX.equals(asked)) {
            return limit.most(devices);
        }
        int ranks = parse();
        if (onGpu && ranks > devices) {
            throw new IllegalArgumentException(
                    this
                            + " needs as many GPUs, and from "
                            + device
                            + " on there are "
                            + devices
                            + ": choose 1 to "
                            + devices
                            + ", or max, or load the model with optDevice(Device.cpu())");
        }
        if (ranks > 1 && limit.isOne()) {
            throw new IllegalArgumentException(
                    this
                            + ": the model has no layer that can be cut over ranks, and its only"
                            + " degree is 1: leave "
                            + NAME
                            + " out, or let the block factory build parallel layers, see"
                            + " TensorParallel.parallelize");
        }
        String refusal = ranks == 1 ? null : limit.refusal(ranks);
        if (refusal != null) {
            throw new IllegalArgumentException(
                    this
                            + ": "
                            + refusal
                            + " The model can be cut over "
                            + limit.most(ranks)
                            + " ranks at most: choose a degree up to that, or max.");
        }
        return ranks;
    }

    private int parse() {
        int ranks = 0;
        try {
            ranks = Integer.parseInt(asked);
        } catch (NumberFormatException e) {
            // refused below
        }
        if (ranks < 1) {
            throw new IllegalArgumentException(
                    NAME + " must be a number of ranks, 1 or more, or max, not " + asked);
        }
        return ranks;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return NAME + " " + asked;
    }

    /** Over how many ranks the parameters of a network can be cut. */
    static final class CutLimit {

        private static final int SEARCHED = 1024; // numbers of ranks that are tried

        private final List<CutParameter> cut = new ArrayList<>();

        /** A parameter that is cut, with its shape in the network. */
        private record CutParameter(String name, ShardingStrategy strategy, Shape shape) {}

        CutLimit(Block network, Shape... inputs) {
            ShapesOnly.read(network, DataType.FLOAT32, () -> find(network, ""), inputs);
        }

        private void find(Block block, String path) {
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
                    .forEach(child -> find(child.getValue(), path + child.getKey() + "_"));
        }

        /** Returns whether no parameter can be cut. */
        boolean isOne() {
            return cut.isEmpty();
        }

        /** Returns the greatest number of ranks, up to a limit, over which all can be cut. */
        int most(int limit) {
            int ranks = isOne() ? 1 : Math.min(limit, SEARCHED);
            while (ranks > 1 && refusal(ranks) != null) {
                ranks--;
            }
            return ranks;
        }

        /** Returns why a network cannot be cut over so many ranks, or {@code null} if it can. */
        String refusal(int ranks) {
            for (CutParameter each : cut) {
                long longest = Arrays.stream(each.shape().getShape()).max().orElse(0);
                if (ranks > Math.max(longest, SEARCHED)) { // before a cut of so many parts is made
                    return String.format(
                            Locale.ROOT,
                            "Parameter %s %s cannot be cut over %d ranks.",
                            each.name(),
                            each.shape(),
                            ranks);
                }
                try {
                    each.strategy().checkSplit(each.name(), each.shape(), ranks);
                } catch (IllegalArgumentException e) {
                    return e.getMessage();
                }
            }
            return null;
        }
    }
}
