package io.djltp.exchange;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.exchange.NameMapping.Match;
import io.djltp.exchange.NameMapping.NamePattern;
import io.djltp.exchange.NameMapping.StackedRows;
import io.djltp.head.Margin;
import io.djltp.internal.safetensors.StoredTensor;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;

/**
 * Finds out for each parameter of a tree of which tensors it is, and everything that does not fit,
 * before anything is read.
 */
final class WeightAssignment {

    private static final Logger logger = LoggerFactory.getLogger(WeightAssignment.class);

    private static final int LISTED = 50; // problems in the message
    private static final Set<String> FLOATING = Set.of("F32", "F16", "BF16", "F64");

    private final WeightFiles files;
    private final NameMapping mapping;
    private final Map<String, Parameter> tree;
    private final Map<Parameter, Shape> shapes;
    private final Map<Parameter, Margin> margins;
    private final Map<Parameter, TensorSource> sources = new IdentityHashMap<>();
    private final Map<Parameter, String> tensorOf = new IdentityHashMap<>(); // of those of one
    private final Map<String, String> readFor = new HashMap<>(); // tensor to parameter
    private final Set<Parameter> read = Collections.newSetFromMap(new IdentityHashMap<>());
    private final Set<String> used = new HashSet<>();
    private final Set<String> problems = new LinkedHashSet<>(); // each once

    WeightAssignment(
            WeightFiles files,
            NameMapping mapping,
            Map<String, Parameter> tree,
            Map<Parameter, Shape> shapes,
            Map<Parameter, Margin> margins) {
        this.files = files;
        this.mapping = mapping;
        this.tree = tree;
        this.shapes = shapes;
        this.margins = margins;
    }

    /**
     * Finds the sources.
     *
     * @param kept the parameters, by path, that are not read
     * @param leaving the tensors that need no parameter, beside those that the mapping ignores
     * @return the source of each parameter that has one
     * @throws MalformedModelException with all that is missing, superfluous or of another shape
     * @throws IOException if a file cannot be read
     */
    Map<Parameter, TensorSource> find(List<NamePattern> kept, List<NamePattern> leaving)
            throws MalformedModelException, IOException {
        Map<String, Match<Parameter>> unmatched = new LinkedHashMap<>(); // null: without a rule
        for (Map.Entry<String, Parameter> entry : tree.entrySet()) {
            String path = entry.getKey();
            List<Match<Parameter>> matches = mapping.matches(path, tree);
            Match<Parameter> match =
                    matches.stream().filter(this::isThere).findFirst().orElse(null);
            if (kept.stream().anyMatch(pattern -> pattern.match(path) != null)) {
                if (match != null) {
                    used.addAll(match.tensors());
                }
                continue;
            }
            read.add(entry.getValue());
            if (match != null) {
                use(match, entry.getValue());
            } else {
                unmatched.put(path, matches.isEmpty() ? null : matches.get(0));
            }
        }
        sources.keySet().retainAll(read); // a rule of several may have one that is kept
        unmatched.forEach(this::reportMissing);
        reportUseless(kept);
        reportSuperfluous(leaving);
        if (!problems.isEmpty()) {
            throw new MalformedModelException(
                    files
                            + " does not fit the model, which is left as it was:\n  "
                            + String.join("\n  ", listed()));
        }
        return sources;
    }

    /** A file of another model can differ in 100,000 names: so many are no message. */
    private List<String> listed() {
        if (problems.size() <= LISTED) {
            return List.copyOf(problems);
        }
        List<String> first = new ArrayList<>(problems.stream().limit(LISTED).toList());
        first.add("and " + (problems.size() - LISTED) + " more");
        return first;
    }

    private boolean isThere(Match<Parameter> match) {
        return match.tensors().stream().allMatch(name -> files.get(name) != null);
    }

    private void reportMissing(String path, Match<Parameter> match) {
        Parameter parameter = tree.get(path);
        if (sources.containsKey(parameter)) {
            return; // shared with a block that has a tensor
        }
        String name = "parameter " + path + " " + shapes.get(parameter);
        if (match == null) {
            problems.add(name + " has no name in the mapping");
            return;
        }
        List<String> missing =
                match.tensors().stream().filter(each -> files.get(each) == null).toList();
        problems.add(
                name
                        + " needs "
                        + String.join(", ", missing)
                        + ", which is missing (of tied weights, which a file has once, a line of"
                        + " the mapping names the tensor)");
    }

    private void reportUseless(List<NamePattern> kept) {
        for (NamePattern pattern : kept) {
            if (tree.keySet().stream().allMatch(path -> pattern.match(path) == null)) {
                problems.add("no parameter has the path " + pattern + ", which is to be kept");
            }
        }
    }

    private void reportSuperfluous(List<NamePattern> leaving) throws IOException {
        for (String name : files.names()) {
            boolean free = leaving.stream().anyMatch(pattern -> pattern.match(name) != null);
            if (!used.contains(name) && !free && !mapping.isIgnored(name)) {
                problems.add(
                        "tensor " + name + " " + files.get(name).shape() + " is no parameter's");
            }
        }
    }

    /** Warns of a weight that the model of the file has once, and this network twice. */
    private void warnIfUntied(Match<Parameter> match) {
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

    private void use(Match<Parameter> match, Parameter parameter) throws IOException {
        used.addAll(match.tensors());
        if (sources.containsKey(parameter)) { // shared by two blocks, or a rule of several
            checkTied(match, parameter);
            return;
        }
        String problem = problem(match);
        if (problem != null) {
            problems.add(problem);
            return;
        }
        warnIfUntied(match);
        StackedRows own = match.parameterRows(shapes::get);
        StackedRows stored =
                new StackedRows(
                        match.rule().padded()
                                ? paddedLengths(match, own.total())
                                : match.tensors().stream()
                                        .mapToLong(name -> Match.rows(shapeOf(match, name)))
                                        .toArray());
        for (int i = 0; i < match.parameters().size(); i++) {
            Parameter each = match.parameters().get(i);
            sources.put(
                    each,
                    new TensorSource(files, match.tensors(), stored, own.start(i), match.rule()));
            tensorOf.put(each, match.tensors().get(0));
        }
    }

    /** Returns how many rows of a padded parameter are a tensor's, and how many are zeros. */
    private long[] paddedLengths(Match<Parameter> match, long rows) {
        String tensor = match.tensors().get(0);
        long read = Math.min(shapeOf(match, tensor).get(0), rows);
        if (read < rows) {
            logger.warn(
                    "Tensor {} of {} has {} rows, and parameter {} {}: the last {} are 0",
                    tensor,
                    files,
                    read,
                    match.paths().get(0),
                    shapes.get(match.parameters().get(0)),
                    rows - read);
        }
        return new long[] {read, rows - read};
    }

    /** Two tensors for one parameter, as of a tied embedding and head, must be the same. */
    private void checkTied(Match<Parameter> match, Parameter parameter) throws IOException {
        String first = tensorOf.get(parameter);
        for (String name : match.tensors()) {
            if (match.parameters().size() == 1
                    && !name.equals(first)
                    && !files.areEqual(first, name)) {
                problems.add(
                        String.format(
                                Locale.ROOT,
                                "tensors %s and %s differ, but are one parameter of the model, %s:"
                                        + " untie the blocks, or let a line of the mapping give"
                                        + " both names the tensor that counts, and skip the other"
                                        + " by optSkipTensors",
                                first,
                                name,
                                match.paths().get(0)));
            }
        }
    }

    private String problem(Match<Parameter> match) {
        List<StoredTensor> tensors = match.tensors().stream().map(files::get).toList();
        for (StoredTensor tensor : tensors) {
            boolean trained = match.parameters().stream().anyMatch(Parameter::requiresGradient);
            if (trained && !FLOATING.contains(tensor.type())) {
                return "tensor "
                        + tensor.name()
                        + " has the data type "
                        + tensor.type()
                        + ", and a parameter that is trained is of floating point numbers: freeze"
                        + " the parameter, or store F32, F16, BF16 or F64";
            }
            if (match.rule().transposed() && tensor.shape().dimension() != 2) {
                return "tensor " + tensor.name() + " " + tensor.shape() + " is to be transposed";
            }
            Margin built = margins.get(match.parameters().get(0));
            String other = MarginNote.problem(files, tensor.name(), match.paths().get(0), built);
            if (other != null) {
                return other;
            }
        }
        Shape first = shapes.get(match.parameters().get(0));
        int axes = first.dimension();
        long[] row = row(first);
        boolean fits =
                Stream.concat(
                                match.parameters().stream().map(shapes::get),
                                match.tensors().stream().map(name -> shapeOf(match, name)))
                        .allMatch(
                                each -> each.dimension() == axes && Arrays.equals(row(each), row));
        fits &= axes > 0 || match.rule().isPlain(); // a scalar has no rows to stack
        long rows = match.parameterRows(shapes::get).total();
        if (fits && !match.rule().padded()) {
            long[] shares = match.tensorRows(rows);
            for (int i = 0; i < tensors.size(); i++) {
                long length = Match.rows(shapeOf(match, match.tensors().get(i)));
                fits &=
                        tensors.size() == 1
                                ? length == rows
                                : shares != null && length == shares[i];
            }
        }
        return fits ? null : describe(match, tensors);
    }

    private String describe(Match<Parameter> match, List<StoredTensor> tensors) {
        return String.format(
                Locale.ROOT,
                "parameter %s is not %s%s",
                String.join(
                        " + ",
                        match.paths().stream()
                                .map(p -> p + " " + shapes.get(tree.get(p)))
                                .toList()),
                String.join(" + ", tensors.stream().map(t -> t.name() + " " + t.shape()).toList()),
                match.rule().transposed() ? " transposed" : "");
    }

    private Shape shapeOf(Match<Parameter> match, String tensor) {
        Shape shape = files.get(tensor).shape();
        return match.rule().transposed() && shape.dimension() == 2
                ? new Shape(shape.get(1), shape.get(0))
                : shape;
    }

    private static long[] row(Shape shape) {
        long[] lengths = shape.getShape();
        return Arrays.copyOfRange(lengths, Math.min(1, lengths.length), lengths.length);
    }
}
