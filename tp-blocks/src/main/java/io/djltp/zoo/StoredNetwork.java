package io.djltp.zoo;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.Pair;

import io.djltp.cut.ShardRange;
import io.djltp.parameters.ShapesOnly;
import io.djltp.parameters.ShardedBlock;
import io.djltp.parameters.SlicedInitializer;
import io.djltp.safetensors.SafetensorsFile;
import io.djltp.safetensors.SliceReader;
import io.djltp.safetensors.StoredTensor;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.training.ParallelInference;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A network without values and the file that has them, under the names that the network's
 * parameters have.
 */
final class StoredNetwork {

    private static final int LISTED = 5; // differences in an error

    private final Block network;
    private final Shape[] inputs;
    private final Path path;
    private final List<Entry> entries;

    private StoredNetwork(Block network, Shape[] inputs, Path path, List<Entry> entries) {
        this.network = network;
        this.inputs = inputs;
        this.path = path;
        this.entries = entries;
    }

    /**
     * A parameter and its place in the file.
     *
     * @param name its name
     * @param parameter the parameter
     * @param strategy how it is cut, or {@code null} if every rank has the whole
     * @param shape its shape in the network
     */
    record Entry(String name, Parameter parameter, ShardingStrategy strategy, Shape shape) {

        boolean isCut() {
            return strategy != null;
        }
    }

    /**
     * Compares a network with a file.
     *
     * @param network the network, without values
     * @param path the file
     * @param inputs the shapes of the network's inputs
     * @return both
     * @throws IOException if the file cannot be read, is not whole, or is of another network: with
     *     the first differences
     * @throws IllegalStateException if the network has values
     */
    static StoredNetwork of(Block network, Path path, Shape... inputs) throws IOException {
        for (Pair<String, Parameter> named : network.getParameters()) {
            if (named.getValue().isInitialized()) {
                throw new IllegalStateException(
                        "The parameter "
                                + named.getKey()
                                + " has a value already, which would not be that of "
                                + path
                                + ": a block factory returns a network without values");
            }
        }
        List<Entry> entries = new ArrayList<>();
        ShapesOnly.read(network, DataType.FLOAT32, () -> addAll(network, entries), inputs);
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            List<String> differences = differences(entries, file.getTensors());
            if (!differences.isEmpty()) {
                int more = differences.size() - LISTED;
                throw new IOException(
                        path
                                + " is of another network: "
                                + String.join(
                                        "; ",
                                        differences.subList(
                                                0, Math.min(LISTED, differences.size())))
                                + (more > 0 ? "; and " + more + " more" : ""));
            }
        }
        return new StoredNetwork(network, inputs, path, entries);
    }

    private static void addAll(Block network, List<Entry> entries) {
        Map<Parameter, ShardingStrategy> strategies = new IdentityHashMap<>();
        findStrategies(network, strategies);
        Set<Parameter> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        for (Pair<String, Parameter> named : network.getParameters()) {
            Parameter parameter = named.getValue();
            if (seen.add(parameter)) { // blocks may share one
                Shape shape = parameter.getArray().getShape();
                entries.add(new Entry(named.getKey(), parameter, strategies.get(parameter), shape));
            }
        }
    }

    private static void findStrategies(Block block, Map<Parameter, ShardingStrategy> strategies) {
        if (block instanceof ShardedBlock) {
            for (Parameter parameter : block.getDirectParameters().values()) {
                ShardingStrategy strategy = ((ShardedBlock) block).getShardingStrategy(parameter);
                if (!strategy.isReplicated()) {
                    strategies.put(parameter, strategy);
                }
            }
        }
        block.getChildren().values().forEach(child -> findStrategies(child, strategies));
    }

    private static List<String> differences(
            List<Entry> entries, Map<String, StoredTensor> tensors) {
        List<String> differences = new ArrayList<>();
        Set<String> unknown = new HashSet<>(tensors.keySet());
        for (Entry entry : entries) {
            StoredTensor tensor = tensors.get(entry.name());
            unknown.remove(entry.name());
            if (tensor == null) {
                differences.add("it has no " + entry.name() + " " + entry.shape());
            } else if (!tensor.shape().equals(entry.shape())) {
                differences.add(
                        entry.name() + " is " + tensor.shape() + " there, not " + entry.shape());
            } else if (!tensor.dataType().isFloating()) {
                differences.add(entry.name() + " is " + tensor.type() + " there, not of floats");
            }
        }
        unknown.stream().sorted().forEach(name -> differences.add("the network has no " + name));
        return differences;
    }

    Block getNetwork() {
        return network;
    }

    List<Entry> getEntries() {
        return entries;
    }

    /** Gives the network all of its values, as {@code model.load} does it. */
    void loadWhole(NDManager manager) throws IOException {
        initialize(1, () -> network.initialize(manager, DataType.FLOAT32, inputs));
        // as after DJL's load: a trainer records gradients, a predictor has no use for them
        entries.forEach(entry -> entry.parameter().getArray().setRequiresGradient(false));
    }

    /**
     * Gives ranks their parts: every rank gets its shards, each read at its place in the file.
     *
     * @param ranks the ranks
     * @return the bytes that were read for each rank; what all ranks have is read once, for rank 0
     * @throws IOException if the file cannot be read
     */
    List<Long> loadShards(ParallelInference ranks) throws IOException {
        return initialize(ranks.getRanks().size(), () -> ranks.initialize(inputs));
    }

    private List<Long> initialize(int ranks, Runnable initialization) throws IOException {
        long[] bytes = new long[ranks];
        Map<Parameter, Initializer> before = new IdentityHashMap<>();
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            for (Entry entry : entries) {
                Parameter parameter = entry.parameter();
                before.put(parameter, parameter.getInitializer());
                parameter.setInitializer(new StoredTensorSource(file, entry.name(), bytes));
            }
            initialization.run();
        } catch (UncheckedIOException e) {
            throw e.getCause();
        } finally {
            before.forEach(Parameter::setInitializer);
        }
        return Arrays.stream(bytes).boxed().toList();
    }

    /** Reads the tensor of a parameter: the whole, or the ranges of one rank after another. */
    private static final class StoredTensorSource implements SlicedInitializer {

        private final SafetensorsFile file;
        private final String name;
        private final long[] bytes; // that were read for each rank
        private int rank; // whose turn it is; what all ranks have is read once, for rank 0

        StoredTensorSource(SafetensorsFile file, String name, long[] bytes) {
            this.file = file;
            this.name = name;
            this.bytes = bytes;
        }

        /** {@inheritDoc} */
        @Override
        public NDArray initialize(
                NDManager manager,
                Shape shape,
                DataType dataType,
                int axis,
                List<ShardRange> ranges) {
            return read(manager, dataType, axis, ranges);
        }

        /** {@inheritDoc} */
        @Override
        public NDArray initialize(NDManager manager, Shape shape, DataType dataType) {
            return read(manager, dataType, 0, null); // which may be a scalar
        }

        private NDArray read(
                NDManager manager, DataType dataType, int axis, List<ShardRange> ranges) {
            long before = file.getBytesRead();
            try {
                SliceReader reader = new SliceReader(file);
                NDArray values =
                        ranges == null
                                ? reader.read(name, manager)
                                : reader.read(name, axis, ranges, manager);
                bytes[rank++] += file.getBytesRead() - before;
                if (values.getDataType() == dataType) {
                    return values;
                }
                try (values) {
                    return values.toType(dataType, true);
                }
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }
}
