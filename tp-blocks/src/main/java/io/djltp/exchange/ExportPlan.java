package io.djltp.exchange;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Which tensors the parameters of a tree become.
 *
 * @param mapping the names
 * @param dataType the data type, or {@code null}: that of each parameter
 * @param vocabulary the rows of what is padded, or 0: those of the parameter
 */
record ExportPlan(NameMapping mapping, DataType dataType, long vocabulary) {

    List<OutputTensor> tensors(Map<String, RowSource> tree) {
        Map<String, OutputTensor> tensors = new LinkedHashMap<>();
        Set<RowSource> done = Collections.newSetFromMap(new IdentityHashMap<>());
        List<String> problems = new ArrayList<>();
        for (Map.Entry<String, RowSource> entry : tree.entrySet()) {
            if (done.contains(entry.getValue())) {
                continue; // shared with a block before, or of a rule of several
            }
            List<RuleMatch<RowSource>> matches = RuleMatch.of(mapping, entry.getKey(), tree);
            if (matches.isEmpty()) {
                problems.add("parameter " + entry.getKey() + " has no name in the mapping");
                continue;
            }
            done.addAll(matches.get(0).parameters());
            for (OutputTensor tensor : tensors(matches.get(0), problems)) {
                if (tensors.put(tensor.name(), tensor) != null) {
                    problems.add("two parameters would be the tensor " + tensor.name());
                }
            }
        }
        if (!problems.isEmpty()) {
            throw new IllegalArgumentException(
                    "The weights cannot be written:\n  " + String.join("\n  ", problems));
        }
        return List.copyOf(tensors.values());
    }

    private List<OutputTensor> tensors(RuleMatch<RowSource> match, List<String> problems) {
        Shape first = match.parameters().get(0).shape();
        DataType type = dataType == null ? match.parameters().get(0).type() : dataType;
        String described = match.paths() + " " + first;
        boolean transposed = match.rule().transposed();
        if (first.dimension() == 0 || transposed && first.dimension() != 2) {
            String reason =
                    first.dimension() == 0 ? "it has no rows" : "what is transposed has two axes";
            problems.add(
                    described + " cannot be written by the rule '" + match.rule() + "': " + reason);
            return List.of();
        }
        if (transposed) {
            Shape turned = new Shape(first.get(1), first.get(0));
            return List.of(
                    new OutputTensor(
                            match.tensors().get(0), type, turned, all(match, first), true));
        }
        StackedRows own = match.parameterRows(RowSource::shape);
        long[] rows = match.tensorRows(own.total());
        if (rows == null) {
            problems.add(described + " cannot be shared out: " + match.tensors());
            return List.of();
        }
        if (match.rule().padded() && vocabulary > 0) {
            rows[0] = vocabulary;
        }
        List<OutputTensor> tensors = new ArrayList<>();
        long at = 0;
        for (int i = 0; i < rows.length; i++) {
            List<OutputTensor.Piece> pieces = pieces(match, own.segments(at, at + rows[i]));
            long[] shape = first.getShape().clone();
            shape[0] = rows[i];
            String name = match.tensors().get(i);
            tensors.add(new OutputTensor(name, type, new Shape(shape), pieces, false));
            at += rows[i];
        }
        return tensors;
    }

    private static List<OutputTensor.Piece> pieces(
            RuleMatch<RowSource> match, List<StackedRows.Segment> segments) {
        return segments.stream()
                .map(
                        each ->
                                new OutputTensor.Piece(
                                        match.parameters().get(each.part()),
                                        each.from(),
                                        each.to()))
                .toList();
    }

    private static List<OutputTensor.Piece> all(RuleMatch<RowSource> match, Shape shape) {
        return List.of(new OutputTensor.Piece(match.parameters().get(0), 0, shape.get(0)));
    }
}
