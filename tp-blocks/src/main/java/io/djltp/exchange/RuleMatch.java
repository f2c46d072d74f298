package io.djltp.exchange;

import ai.djl.ndarray.types.Shape;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/**
 * A rule of a mapping for some parameters of a tree.
 *
 * @param rule the rule
 * @param paths the parameters by path
 * @param parameters the parameters
 * @param tensors the names of the tensors
 * @param <P> what stands for a parameter
 */
record RuleMatch<P>(NameRule rule, List<String> paths, List<P> parameters, List<String> tensors) {

    /** Returns what the rules say of a parameter, the first rule first. */
    static <P> List<RuleMatch<P>> of(NameMapping mapping, String path, Map<String, P> tree) {
        List<RuleMatch<P>> matches = new ArrayList<>();
        for (NameRule rule : mapping.rules()) {
            for (NamePattern pattern : rule.parameters()) {
                Map<String, String> places = pattern.match(path);
                if (places != null) {
                    RuleMatch<P> match = of(rule, places, tree);
                    if (match != null) {
                        matches.add(match);
                    }
                    break;
                }
            }
        }
        return matches;
    }

    private static <P> RuleMatch<P> of(
            NameRule rule, Map<String, String> places, Map<String, P> tree) {
        List<String> paths = new ArrayList<>();
        List<P> parameters = new ArrayList<>();
        for (NamePattern pattern : rule.parameters()) {
            String path = pattern.blockName(places);
            if (!tree.containsKey(path)) {
                return null; // not of this kind of block
            }
            paths.add(path);
            parameters.add(tree.get(path));
        }
        List<String> tensors =
                rule.tensors().stream().map(part -> part.name().tensorName(places)).toList();
        return new RuleMatch<>(rule, paths, parameters, tensors);
    }

    /** Returns the rows of the parameters. */
    StackedRows parameterRows(Function<P, Shape> shapes) {
        return new StackedRows(
                parameters.stream().mapToLong(each -> shapes.apply(each).get(0)).toArray());
    }

    /**
     * Returns the rows that each tensor has of so many, or {@code null} if they cannot be shared
     * out.
     */
    long[] tensorRows(long rows) {
        long shares = rule.tensors().stream().mapToLong(NameRule.Part::share).sum();
        if (rows % shares != 0) {
            return null;
        }
        return rule.tensors().stream().mapToLong(part -> rows / shares * part.share()).toArray();
    }
}
