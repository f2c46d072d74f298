package io.djltp.exchange;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Pattern;

/**
 * The paths by which a {@link NameMapping} finds the parameters of a block tree.
 *
 * <p>DJL calls the children of a block {@code 01layer}, {@code 02layer}, {@code 03norm}. Here they
 * are {@code layer0}, {@code layer1} and {@code norm}: without the count, but numbered where
 * several would have one name.
 */
public final class ParameterPaths {

    private static final Pattern COUNT = Pattern.compile("^\\d{2,}(?=\\D)");

    private final Map<String, Parameter> paths = new LinkedHashMap<>();

    private ParameterPaths() {}

    /**
     * Returns the parameters of a tree.
     *
     * @param block the tree
     * @return the parameters by path, in the order of the tree; one that blocks share under each of
     *     its paths
     */
    public static Map<String, Parameter> of(Block block) {
        ParameterPaths found = new ParameterPaths();
        found.visit(block, "");
        for (Pair<String, Parameter> named : block.getParameters()) {
            // what a block has and does not show as a child's keeps DJL's name
            if (!found.paths.containsValue(named.getValue())) {
                found.paths.put(named.getKey(), named.getValue());
            }
        }
        return found.paths;
    }

    private void visit(Block block, String prefix) {
        for (Pair<String, Parameter> named : block.getDirectParameters()) {
            paths.put(prefix + named.getKey(), named.getValue());
        }
        children(block).forEach((name, child) -> visit(child, prefix + name + "."));
    }

    /** Returns the children of a block by the names that they have in paths. */
    static Map<String, Block> children(Block block) {
        Map<String, Integer> siblings = new HashMap<>();
        for (Pair<String, Block> child : block.getChildren()) {
            siblings.merge(name(child), 1, Integer::sum);
        }
        Map<String, Integer> seen = new HashMap<>();
        Map<String, Block> children = new LinkedHashMap<>();
        for (Pair<String, Block> child : block.getChildren()) {
            String name = name(child);
            int number = seen.merge(name, 1, Integer::sum) - 1;
            children.put(name + (siblings.get(name) > 1 ? number : ""), child.getValue());
        }
        return children;
    }

    private static String name(Pair<String, Block> child) {
        return COUNT.matcher(child.getKey()).replaceFirst("");
    }
}
