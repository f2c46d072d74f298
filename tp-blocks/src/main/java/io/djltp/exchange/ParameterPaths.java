package io.djltp.exchange;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Iterator;
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
final class ParameterPaths {

    private static final Pattern COUNT = Pattern.compile("^\\d{2,}(?=\\D)");

    private ParameterPaths() {}

    /** Returns the parameters of a tree by path. */
    static Map<String, Parameter> of(Block block) {
        Map<String, Parameter> paths = new LinkedHashMap<>();
        visit(block, "", paths);
        for (Pair<String, Parameter> named : block.getParameters()) {
            // what a block has and does not show as a child's keeps DJL's name
            if (!paths.containsValue(named.getValue())) {
                paths.put(named.getKey(), named.getValue());
            }
        }
        return paths;
    }

    private static void visit(Block block, String prefix, Map<String, Parameter> paths) {
        for (Pair<String, Parameter> named : block.getDirectParameters()) {
            paths.put(prefix + named.getKey(), named.getValue());
        }
        children(block).forEach((name, child) -> visit(child, prefix + name + ".", paths));
    }

    /** Returns the children of a block by the names that they have in paths. */
    static Map<String, Block> children(Block block) {
        Map<String, Block> children = new LinkedHashMap<>();
        Iterator<String> names = numbered(block.getChildren().keys()).iterator();
        block.getChildren().values().forEach(child -> children.put(names.next(), child));
        return children;
    }

    /**
     * Returns what is said of parameters by path, of which only DJL's names are known, {@code
     * 02body_01Linear_weight}. (Siblings without parameters are not, and do not count.)
     */
    static Map<String, String> ofNames(Map<String, String> names) {
        Map<List<String>, String> split = new LinkedHashMap<>();
        names.forEach((name, value) -> split.put(blocks(name), value));
        Map<String, String> paths = new LinkedHashMap<>();
        visit(split, "", paths);
        return paths;
    }

    private static void visit(
            Map<List<String>, String> split, String prefix, Map<String, String> paths) {
        Map<String, Map<List<String>, String>> children = new LinkedHashMap<>();
        split.forEach(
                (blocks, value) -> {
                    if (blocks.size() == 1) {
                        paths.put(prefix + blocks.get(0), value);
                    } else {
                        children.computeIfAbsent(blocks.get(0), key -> new LinkedHashMap<>())
                                .put(blocks.subList(1, blocks.size()), value);
                    }
                });
        Iterator<String> names = numbered(children.keySet()).iterator();
        children.values().forEach(child -> visit(child, prefix + names.next() + ".", paths));
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

    /** Returns the names of siblings without DJL's counts, and numbered where several are one. */
    private static List<String> numbered(Collection<String> siblings) {
        List<String> names =
                siblings.stream().map(each -> COUNT.matcher(each).replaceFirst("")).toList();
        List<String> numbered = new ArrayList<>();
        for (int i = 0; i < names.size(); i++) {
            String name = names.get(i);
            boolean alone = names.indexOf(name) == names.lastIndexOf(name);
            long before = names.subList(0, i).stream().filter(name::equals).count();
            numbered.add(alone ? name : name + before);
        }
        return numbered;
    }
}
