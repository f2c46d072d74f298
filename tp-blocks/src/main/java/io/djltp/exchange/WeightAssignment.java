package io.djltp.exchange;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.cut.ShardRange;
import io.djltp.exchange.NameMapping.Match;
import io.djltp.exchange.NameMapping.NamePattern;
import io.djltp.exchange.NameMapping.Shaped;
import io.djltp.exchange.NameMapping.StackedRows;
import io.djltp.head.Margin;
import io.djltp.internal.parameters.SlicedInitializer;
import io.djltp.internal.safetensors.StoredTensor;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * Finds out for each parameter of a tree of which tensors it is, and everything that does not fit,
 * before anything is read.
 */
final class WeightAssignment {

    private static final Logger logger = LoggerFactory.getLogger(WeightAssignment.class);

    private static final int LISTED = 10; // problems in the message
    private static final Set<String> FLOATING = Set.of("F32", "F16", "BF16", "F64");

    private final WeightFiles files;
    private final NameMapping mapping;
    private final Map<String, Target> tree;
    private final Map<Parameter, TensorSource> sources = new IdentityHashMap<>();
    private final Map<String, String> readFor = new HashMap<>(); // tensor to parameter
    private final Map<String, String> refusedTypes = new HashMap<>(); // data type to a tensor of it
    private final Set<String> used = new HashSet<>();
    private final Set<String> problems = new LinkedHashSet<>(); // each once

    WeightAssignment(WeightFiles files, NameMapping mapping, Map<String, Target> tree) {
        this.files = files;
        this.mapping = mapping;
        this.tree = tree;
    }

    /**
     * A parameter of the tree.
     *
     * @param parameter the parameter
     * @param shape its shape
     * @param margin the margin of the head that has it, or {@code null}
     */
    record Target(Parameter parameter, Shape shape, @Nullable Margin margin) implements Shaped {}

    /**
     * Finds the sources.
     *
     * @param kept the parameters, by path, that are not read
     * @param leaving the tensors that need no parameter, beside those that the mapping ignores
     * @return the source of each parameter that has one
     * @throws MalformedModelException with the first of what is missing, superfluous or of another
     *     shape
     * @throws IOException if a file cannot be read
     */
    Map<Parameter, TensorSource> find(List<NamePattern> kept, List<NamePattern> leaving)
            throws MalformedModelException, IOException {
        Map<String, List<Match<Target>>> unmatched = new LinkedHashMap<>();
        Set<Parameter> read = Collections.newSetFromMap(new IdentityHashMap<>());
        for (Map.Entry<String, Target> entry : tree.entrySet()) {
            String path = entry.getKey();
            List<Match<Target>> matches = mapping.matches(path, tree::get);
            Match<Target> match =
                    matches.stream()
                            .filter(each -> missing(each).isEmpty())
                            .findFirst()
                            .orElse(null);
            if (match != null) {
                used.addAll(match.tensors());
            }
            if (kept.stream().noneMatch(pattern -> pattern.match(path) != null)) {
                read.add(entry.getValue().parameter());
                if (match == null) {
                    unmatched.put(path, matches);
                } else {
                    use(match, entry.getValue().parameter());
                }
            }
        }
        sources.keySet().retainAll(read); // a rule of several may have one that is kept
        unmatched.forEach(this::reportMissing);
        for (NamePattern pattern : kept) {
            if (tree.keySet().stream().allMatch(path -> pattern.match(path) == null)) {
                problems.add("no parameter has the path " + pattern + ", which is to be kept");
            }
        }
        for (String name : files.names()) {
            boolean free = leaving.stream().anyMatch(pattern -> pattern.match(name) != null);
            if (!used.contains(name) && !free && !mapping.isIgnored(name)) {
                problems.add("tensor " + name + " " + tensor(name).shape() + " is no parameter's");
            }
        }
        if (!problems.isEmpty()) {
            // a file of another model can differ in 100,000 names: so many are no message
            List<String> listed = new ArrayList<>(problems.stream().limit(LISTED).toList());
            if (problems.size() > LISTED) {
                listed.add("and " + (problems.size() - LISTED) + " more");
            }
            throw new MalformedModelException(
                    files
                            + " does not fit the model, which is left as it was:\n  "
                            + String.join("\n  ", listed));
        }
        return sources;
    }

    private Target target(String path) {
        return Objects.requireNonNull(tree.get(path), path);
    }

    private StoredTensor tensor(String name) {
        return Objects.requireNonNull(files.get(name), name);
    }

    private List<String> missing(Match<Target> match) {
        return match.tensors().stream().filter(name -> files.get(name) == null).toList();
    }

    private void reportMissing(String path, List<Match<Target>> matches) {
        if (sources.containsKey(target(path).parameter())) {
            return; // shared with a block that has a tensor
        }
        String name = "parameter " + path + " " + target(path).shape();
        problems.add(
                matches.isEmpty()
                        ? name + " has no name in the mapping"
                        : name
                                + " needs "
                                + String.join(", ", missing(matches.get(0)))
                                + ", which is missing");
    }

    private void use(Match<Target> match, Parameter parameter) throws IOException {
        TensorSource other = sources.get(parameter);
        if (other != null) { // shared by two blocks, or a rule of several
            checkTied(match, other.tensors().get(0));
            return;
        }
        String problem = problem(match);
        if (problem != null) {
            problems.add(problem);
            return;
        }
        warnIfUntied(match);
        StackedRows own = match.stacked();
        StackedRows stored = new StackedRows(rowsOfTensors(match, own.total()));
        for (int i = 0; i < match.parameters().size(); i++) {
            sources.put(
                    match.parameters().get(i).parameter(),
                    new TensorSource(
                            files,
                            match.tensors(),
                            match.rule().transposed(),
                            stored,
                            own.start(i)));
        }
    }

    /** Returns how many rows of the parameters are those of each tensor, and how many are zeros. */
    private long[] rowsOfTensors(Match<Target> match, long rows) {
        if (match.rule().transposed()) {
            return new long[] {rows};
        } else if (!match.rule().padded()) {
            return match.tensors().stream()
                    .mapToLong(name -> Match.rows(tensor(name).shape()))
                    .toArray();
        }
        String tensor = match.tensors().get(0);
        long read = Math.min(tensor(tensor).shape().get(0), rows);
        if (read < rows) {
            logger.warn(
                    "Tensor {} of {} has {} rows, and parameter {} {}: the last {} are 0",
                    tensor,
                    files,
                    read,
                    match.paths().get(0),
                    match.parameters().get(0).shape(),
                    rows - read);
        }
        return new long[] {read, rows - read};
    }

    /** Warns of a weight that the model of the file has once, and this network twice. */
    private void warnIfUntied(Match<Target> match) {
        String path = match.paths().get(0);
        for (String name : match.tensors()) {
            String first = readFor.putIfAbsent(name, path);
            if (first != null) {
                logger.warn(
                        "Tensor {} of {} is read for {} and for {}, two parameters that will differ"
                                + " after training. If the model ties them, let them be one:"
                                + " optTiedWeight(embedding) of the head",
                        name,
                        files,
                        first,
                        path);
            }
        }
    }

    /** Two tensors for one parameter, as of a tied embedding and head, must be the same. */
    private void checkTied(Match<Target> match, String first) throws IOException {
        for (String name : match.tensors()) {
            if (match.parameters().size() == 1
                    && !name.equals(first)
                    && !files.areEqual(first, name)) {
                problems.add(
                        ("tensors %s and %s differ, but are one parameter of the model, %s: untie"
                                        + " the blocks, or let a line of the mapping give both"
                                        + " names the tensor that counts, and skip the other by"
                                        + " optSkipTensors")
                                .formatted(first, name, match.paths().get(0)));
            }
        }
    }

    private @Nullable String problem(Match<Target> match) {
        boolean trained =
                match.parameters().stream().anyMatch(each -> each.parameter().requiresGradient());
        String path = match.paths().get(0);
        String built = WeightFiles.note(match.parameters().get(0).margin());
        for (String name : match.tensors()) {
            String type = tensor(name).type();
            if (trained && !FLOATING.contains(type)) {
                return ("tensor %s has the data type %s, and a parameter that is trained is F32,"
                                + " F16, BF16 or F64: freeze the parameter, or store one of these")
                        .formatted(refusedTypes.computeIfAbsent(type, each -> name), type);
            }
            String noted = files.note(name);
            if (noted != null && !noted.equals(built)) {
                return ("tensor %s is the weight of a head that was trained with the margin %s"
                                + " (scale, m1, m2, m3), and parameter %s is built with %s: give"
                                + " its ClassificationHead that margin (optMargin)")
                        .formatted(name, noted, path, built);
            }
        }
        if (fits(match)) {
            return null;
        }
        Stream<String> parameters =
                match.paths().stream().map(each -> each + " " + target(each).shape());
        Stream<String> tensors =
                match.tensors().stream().map(name -> name + " " + tensor(name).shape());
        return "parameter %s is not %s%s"
                .formatted(
                        parameters.collect(Collectors.joining(" + ")),
                        tensors.collect(Collectors.joining(" + ")),
                        match.rule().transposed() ? " transposed" : "");
    }

    private boolean fits(Match<Target> match) {
        try {
            List<Shape> expected = match.tensorShapes();
            return IntStream.range(0, expected.size())
                    .allMatch(
                            i -> {
                                Shape stored = tensor(match.tensors().get(i)).shape();
                                long rows = Match.rows(expected.get(i));
                                return expected.get(i)
                                        .equals(
                                                match.rule().padded()
                                                        ? Match.withRows(stored, rows)
                                                        : stored);
                            });
        } catch (IllegalArgumentException e) {
            return false;
        }
    }

    /**
     * Reads a parameter, or a rank's shard of it, out of the tensors whose rows it has.
     *
     * @param files the files
     * @param tensors the tensors
     * @param transposed whether a row of the parameter is a column of the tensor
     * @param rows the rows of each tensor that count, and the number of rows of zeros behind them
     * @param firstRow which of all rows is the parameter's first
     */
    record TensorSource(
            WeightFiles files,
            List<String> tensors,
            boolean transposed,
            StackedRows rows,
            long firstRow)
            implements SlicedInitializer {

        /** {@inheritDoc} */
        @Override
        public NDArray initialize(NDManager manager, Shape shape, DataType dataType) {
            List<ShardRange> all = List.of(new ShardRange(0, Match.rows(shape)));
            return initialize(manager, shape, dataType, 0, all);
        }

        /** {@inheritDoc} */
        @Override
        public NDArray initialize(
                NDManager manager,
                Shape shape,
                DataType dataType,
                int axis,
                List<ShardRange> ranges) {
            try {
                return read(manager, shape, dataType, axis, ranges);
            } catch (IOException e) {
                throw new UncheckedIOException(
                        "The tensors " + tensors + " cannot be read from " + files + ": " + e, e);
            }
        }

        private NDArray read(
                NDManager manager, Shape shape, DataType type, int axis, List<ShardRange> ranges)
                throws IOException {
            if (shape.dimension() == 0) {
                String name = tensors.get(0);
                return converted(files.fileOf(name).read(name, manager), type, name);
            }
            List<StackedRows.Segment> segments = new ArrayList<>();
            for (ShardRange range : axis == 0 ? ranges : List.of(new ShardRange(0, shape.get(0)))) {
                segments.addAll(rows.segments(firstRow + range.start(), firstRow + range.end()));
            }
            if (segments.size() == 1 && segments.get(0).part() < tensors.size() && !transposed) {
                return read(manager, type, segments.get(0), axis, ranges);
            }
            long[] lengths = shape.getShape().clone();
            lengths[axis] = ranges.stream().mapToLong(ShardRange::length).sum();
            NDArray whole = manager.zeros(new Shape(lengths), type);
            long at = 0;
            for (StackedRows.Segment each : segments) {
                if (each.part() < tensors.size()) {
                    try (NDArray part = read(manager, type, each, axis, ranges)) {
                        whole.set(new NDIndex().addSliceDim(at, at + each.length()), part);
                    }
                }
                at += each.length();
            }
            return whole;
        }

        /** Reads rows of a tensor, with ranges of an axis behind if that is not the first. */
        private NDArray read(
                NDManager manager,
                DataType type,
                StackedRows.Segment segment,
                int axis,
                List<ShardRange> ranges)
                throws IOException {
            String name = tensors.get(segment.part());
            ShardRange own = new ShardRange(segment.from(), segment.length());
            NDArray array =
                    files.fileOf(name)
                            .read(
                                    name,
                                    transposed ? 1 - axis : axis,
                                    axis == 0 ? List.of(own) : ranges,
                                    manager);
            if (transposed) {
                array = replace(array, array.transpose());
            }
            if (array.getShape().get(0) != own.length()) { // some of the rows: rare
                array = replace(array, array.get(own.start() + ":" + own.end()));
            }
            return converted(array, type, name);
        }

        /** Converts what was read: bfloat16 is the upper half of a float32, float64 is rounded. */
        private static NDArray converted(NDArray array, DataType type, String name)
                throws IOException {
            if (array.getDataType() == type || !array.getDataType().isFloating()) {
                return array; // of what is not trained, integers and booleans stay what they are
            }
            NDArray result = array.toType(type, false);
            if (type.getNumOfBytes() > array.getDataType().getNumOfBytes()) {
                return replace(array, result);
            }
            try (array;
                    NDManager scope = array.getManager().newSubManager()) {
                scope.tempAttachAll(array, result);
                Number lost = OutputTensor.findLost(array, result);
                if (lost != null) {
                    String narrow = type.name().toLowerCase(Locale.ROOT);
                    throw new IOException(
                            "tensor %s has numbers that %s cannot hold: %s"
                                    .formatted(name, narrow, lost));
                }
            }
            return result;
        }

        private static NDArray replace(NDArray old, NDArray array) {
            old.close();
            return array;
        }
    }
}
