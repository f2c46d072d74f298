package io.djltp.exchange;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.CheckpointException;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
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

    /**
     * Returns the weights of a checkpoint.
     *
     * @param checkpoint the checkpoint
     * @return the names of its tensors by path; of what blocks share under each of its paths
     * @throws CheckpointException if what it says of the trainer is damaged
     */
    public static Map<String, String> of(Checkpoint checkpoint) throws CheckpointException {
        Map<String, String> weights = checkpoint.getWeights();
        Map<String, String> paths = ofNames(weights.keySet());
        paths.replaceAll((path, name) -> weights.get(name));
        return paths;
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

    /**
     * Returns the paths of parameters of which only DJL's names are known, {@code
     * 02body_01Linear_weight}. (Siblings without parameters are not, and do not count.)
     */
    static Map<String, String> ofNames(Collection<String> names) {
        Map<String, List<String>> children = new LinkedHashMap<>(); // of a block, by its DJL name
        for (String name : names) {
            List<String> blocks = blocks(name);
            for (int i = 0; i + 1 < blocks.size(); i++) {
                List<String> siblings =
                        children.computeIfAbsent(
                                String.join("_", blocks.subList(0, i)), key -> new ArrayList<>());
                if (!siblings.contains(blocks.get(i))) {
                    siblings.add(blocks.get(i));
                }
            }
        }
        Map<String, String> paths = new LinkedHashMap<>();
        for (String name : names) {
            List<String> blocks = blocks(name);
            StringBuilder path = new StringBuilder();
            for (int i = 0; i + 1 < blocks.size(); i++) {
                String plain = withoutCount(blocks.get(i));
                List<String> same =
                        children.get(String.join("_", blocks.subList(0, i))).stream()
                                .filter(each -> withoutCount(each).equals(plain))
                                .toList();
                path.append(plain)
                        .append(same.size() > 1 ? "" + same.indexOf(blocks.get(i)) : "")
                        .append('.');
            }
            paths.put(path + blocks.get(blocks.size() - 1), name);
        }
        return paths;
    }

    /** Returns the blocks that a parameter is in, and its own name: a count begins a block. */
    private static List<String> blocks(String name) {
        List<String> blocks = new ArrayList<>(List.of(name.split("_(?=\\d{2,}\\D)")));
        String last = blocks.remove(blocks.size() - 1);
        int end = last.lastIndexOf('_');
        if (end >= 0 && COUNT.matcher(last).find()) {
            blocks.add(last.substring(0, end));
        }
        blocks.add(last.substring(end + 1));
        return blocks;
    }

    private static String withoutCount(String block) {
        return COUNT.matcher(block).replaceFirst("");
    }

    private static String name(Pair<String, Block> child) {
        return withoutCount(child.getKey());
    }
}
