package io.djltp.exchange;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.CheckpointException;
import io.djltp.checkpoint.CutTensor;
import io.djltp.cut.ShardRange;
import io.djltp.exchange.NameMapping.Match;
import io.djltp.exchange.NameMapping.Shaped;
import io.djltp.head.Margin;
import io.djltp.internal.Errors;
import io.djltp.internal.parameters.BlockWalk;
import io.djltp.internal.parameters.HeldParameters;
import io.djltp.internal.parameters.LowRank;
import io.djltp.internal.parameters.WeightSource;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.BFloat16;
import io.djltp.internal.torch.TensorBuffers;
import io.djltp.internal.torch.TensorView;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/**
 * A tensor that is to be written.
 *
 * @param name its name
 * @param type its data type
 * @param shape its shape
 * @param pieces the rows that it has, one after another
 * @param transposed whether its rows are the columns of the one weight that it has
 */
record OutputTensor(
        String name, DataType type, Shape shape, List<Piece> pieces, boolean transposed) {

    private static final long CHUNK = 1 << 22; // bytes

    /**
     * Consecutive rows of a weight.
     *
     * @param source the weight
     * @param from the first row
     * @param to the row behind the last
     */
    record Piece(Source source, long from, long to) {}

    /** Where the bytes go. */
    interface Sink {

        void write(ByteBuffer bytes) throws IOException;
    }

    /** Returns a whole weight. */
    static OutputTensor of(String name, DataType type, Source weight) {
        Piece all = new Piece(weight, 0, Match.rows(weight.shape()));
        return new OutputTensor(name, type, weight.shape(), List.of(all), false);
    }

    /** Returns the number of bytes. */
    long bytes() {
        return shape.size() * type.getNumOfBytes();
    }

    /** Writes the tensor, a chunk of rows at a time, and whole where it is transposed. */
    @SuppressWarnings("try") // a scope is used by being open
    void write(Sink sink) throws IOException {
        long rows = Math.max(1, CHUNK / Math.max(1, bytes() / Math.max(1, Match.rows(shape))));
        try (NDManager manager = NDManager.newBaseManager(Device.cpu());
                Autograd.GradMode mode = Autograd.gradMode(false)) {
            for (Piece piece : pieces) {
                long step = transposed ? piece.to() : rows;
                for (long row = piece.from(); row < piece.to(); row += step) {
                    try (NDManager chunk = manager.newSubManager()) {
                        write(piece, row, Math.min(step, piece.to() - row), chunk, sink);
                    }
                }
                piece.source().release().run();
            }
        }
    }

    private void write(Piece piece, long row, long count, NDManager chunk, Sink sink)
            throws IOException {
        NDArray rows = piece.source().reader().rows(row, count, chunk);
        NDArray dense = transposed ? rows.transpose() : rows;
        if (!TensorView.of(dense).isContiguous()) {
            NDArray copy = chunk.create(dense.getShape(), dense.getDataType());
            copy.set(new NDIndex("..."), dense);
            dense = copy;
        }
        boolean brain = type == DataType.BFLOAT16;
        NDArray converted = brain ? BFloat16.bitsOf(dense, chunk) : dense.toType(type, false);
        boolean narrowed = type.getNumOfBytes() == 2 && dense.getDataType().getNumOfBytes() > 2;
        Number lost =
                !narrowed
                        ? null
                        : findLost(dense, brain ? BFloat16.toFloat32(converted, chunk) : converted);
        if (lost != null) {
            throw new IOException(
                    ("tensor %s has numbers that %s cannot hold, such as %s: it ends at %s. Nothing"
                                    + " is written; write %s")
                            .formatted(
                                    name,
                                    type.name().toLowerCase(Locale.ROOT),
                                    lost,
                                    brain ? "3.3895e38" : "65504",
                                    brain ? "float32" : "bfloat16 or float32"));
        }
        for (ByteBuffer bytes : TensorBuffers.of(converted)) {
            sink.write(bytes);
        }
    }

    /**
     * Returns a finite number that is infinite in another type, or {@code null} if there is none;
     * infinite ones may be meant.
     */
    static @Nullable Number findLost(NDArray from, NDArray to) {
        NDArray lost = to.isInfinite().logicalAnd(from.isInfinite().logicalNot());
        return lost.any().getBoolean() ? from.booleanMask(lost).toArray()[0] : null;
    }

    /**
     * A weight that can be read some rows (indices of axis 0) at a time.
     *
     * @param shape its shape
     * @param type its data type
     * @param margin the margin of the head that has it, or {@code null}
     * @param reader reads rows
     * @param release is run when no more rows are read for now
     */
    record Source(
            Shape shape, DataType type, @Nullable Margin margin, Reader reader, Runnable release)
            implements Shaped {

        /** Reads consecutive rows. */
        @FunctionalInterface
        interface Reader {

            /** Returns rows in host memory, which may be the memory of the weight itself. */
            NDArray rows(long first, long count, NDManager manager) throws IOException;
        }

        /**
         * Returns the sources of a tree, one for each parameter.
         *
         * @param block the tree
         * @param adapters whether they are those of adapters only; else weights have them in them
         */
        static Map<String, Source> of(Block block, boolean adapters) {
            Map<Parameter, Margin> margins = WeightFiles.margins(block);
            Map<Parameter, LowRank> updates = new IdentityHashMap<>();
            Set<Parameter> ofAdapters = Collections.newSetFromMap(new IdentityHashMap<>());
            BlockWalk.of(
                    block,
                    (each, path, certain) -> {
                        if (each instanceof LowRank update) {
                            updates.put(update.weight(), update);
                            ofAdapters.addAll(List.of(update.a(), update.b()));
                        }
                    });
            Errors.check(
                    !adapters || !updates.isEmpty(), "The network has no adapters to be written");
            Map<Parameter, Source> sources = new IdentityHashMap<>();
            Map<String, Source> paths = new LinkedHashMap<>();
            for (Map.Entry<String, Parameter> each : ParameterPaths.of(block).entrySet()) {
                Parameter parameter = each.getValue();
                if (ofAdapters.contains(parameter) != adapters) {
                    continue;
                }
                if (!parameter.isInitialized()) {
                    throw Errors.state("The parameter %s has no values to write", each.getKey());
                }
                sources.computeIfAbsent(
                        parameter, key -> of(key, margins.get(key), updates.get(key)));
                paths.put(each.getKey(), sources.get(parameter));
            }
            return paths;
        }

        /** Returns the weights of a checkpoint, without what optimizers keep, by path. */
        static Map<String, Source> of(Checkpoint checkpoint) throws CheckpointException {
            Map<String, Margin> margins = checkpoint.getMargins();
            Map<String, Source> tensors = new HashMap<>(); // one each, also of what blocks share
            Map<String, Source> paths = new LinkedHashMap<>();
            Map<String, String> names = NameMapping.paths(checkpoint);
            for (String name : names.values()) {
                tensors.putIfAbsent(name, of(checkpoint, name, margins.get(name)));
            }
            names.forEach((path, name) -> paths.put(path, tensors.get(name)));
            return paths;
        }

        private static Source of(Checkpoint checkpoint, String name, @Nullable Margin margin) {
            CutTensor tensor = Objects.requireNonNull(checkpoint.getTensors().get(name), name);
            return new Source(
                    tensor.shape(),
                    tensor.type(),
                    margin,
                    (first, count, manager) ->
                            checkpoint.read(
                                    name, 0, List.of(new ShardRange(first, count)), manager),
                    () -> {});
        }

        /** Returns the source of a parameter with the sum of it and an update, if there is one. */
        private static Source of(
                Parameter parameter, @Nullable Margin margin, @Nullable LowRank update) {
            Source own = of(parameter, margin);
            if (update == null) {
                return own;
            }
            Source a = of(update.a(), null);
            Source b = of(update.b(), null);
            NDList factors = new NDList(); // read once
            return new Source(
                    own.shape(),
                    own.type(),
                    margin,
                    (first, count, manager) -> {
                        if (factors.isEmpty()) {
                            NDManager held = NDManager.newBaseManager(Device.cpu());
                            for (Source each : List.of(a, b)) {
                                NDArray all = each.reader().rows(0, each.shape().get(0), held);
                                factors.add(all.toType(DataType.FLOAT32, true));
                                each.release().run();
                            }
                        }
                        NDArray rows = own.reader().rows(first, count, manager);
                        return merged(update, factors, rows, first);
                    },
                    () -> {
                        if (!factors.isEmpty()) {
                            factors.head().getManager().close();
                            factors.clear();
                        }
                        own.release().run();
                    });
        }

        /** Returns rows of a weight with those of its update. */
        private static NDArray merged(LowRank update, NDList factors, NDArray rows, long first) {
            NDManager manager = rows.getManager();
            NDArray sum = rows.toType(DataType.FLOAT32, true);
            NDList a = factors.get(0).split(update.parts(), 0);
            NDArray b = factors.get(1);
            long each = b.getShape().get(0) / update.parts();
            for (int part = 0; part < update.parts(); part++) {
                long from = Math.max(first, part * each);
                long to = Math.min(first + rows.getShape().get(0), (part + 1) * each);
                if (from < to) {
                    NDArray own = b.get(new NDIndex().addSliceDim(from, to));
                    own.attach(manager);
                    NDArray added = own.matMul(a.get(part)).mul(update.scale());
                    sum.get(new NDIndex().addSliceDim(from - first, to - first)).addi(added);
                }
            }
            return sum.toType(rows.getDataType(), false);
        }

        /** Returns the source of a parameter: the ranks that train it, or the parameter itself. */
        static Source of(Parameter parameter, @Nullable Margin margin) {
            return new Source(
                    parameter.getArray().getShape(),
                    parameter.getArray().getDataType(),
                    margin,
                    (first, count, manager) -> rows(parameter, first, count, manager),
                    () -> {
                        WeightSource ranks = HeldParameters.sourceOf(parameter);
                        if (ranks != null) {
                            ranks.release(parameter);
                        }
                    });
        }

        private static NDArray rows(
                Parameter parameter, long first, long count, NDManager manager) {
            WeightSource ranks = HeldParameters.sourceOf(parameter);
            if (ranks != null) {
                return ranks.rows(parameter, first, count, manager);
            }
            HeldParameters.checkWhole(parameter, "Writing the weights");
            NDArray array = parameter.getArray();
            if (array.getShape().dimension() == 0) {
                return Autograd.detach(array, manager);
            }
            try (NDArray view = array.get(new NDIndex().addSliceDim(first, first + count))) {
                NDArray rows = Autograd.detach(view, manager).toDevice(Device.cpu(), false);
                rows.attach(manager);
                return rows;
            }
        }
    }
}
