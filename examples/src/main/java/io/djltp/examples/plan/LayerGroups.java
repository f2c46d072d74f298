package io.djltp.examples.plan;

import io.djltp.cost.ModelCost.LayerCost;
import io.djltp.cost.ModelCost.ParameterCost;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Function;

/**
 * Finds equal blocks that follow one another, such as the layers of a transformer, by the paths of
 * the network's layers: of layers whose paths have the same beginning, a block is made.
 */
final class LayerGroups {

    private final PlanReport report;
    private final List<LayerGroup> groups = new ArrayList<>();

    private LayerGroups(PlanReport report) {
        this.report = report;
    }

    /** Returns the groups, in the order of the layers. */
    static List<LayerGroup> of(PlanReport report) {
        LayerGroups groups = new LayerGroups(report);
        groups.add(report.cost().getLayers(), 0);
        return groups.groups;
    }

    /** Adds layers, of which blocks are those whose paths are the same up to a depth. */
    private void add(List<LayerCost> layers, int depth) {
        List<List<LayerCost>> blocks = runs(layers, layer -> beginning(layer, depth));
        for (List<List<LayerCost>> equal : runs(blocks, block -> signature(block, depth))) {
            List<LayerCost> first = equal.get(0);
            if (first.size() == 1) {
                equal.forEach(block -> addSingle(block.get(0)));
            } else if (equal.size() == 1) {
                add(first, depth + 1);
            } else {
                addEqual(equal, depth);
            }
        }
    }

    /** Cuts a list into the longest pieces whose elements have one key. */
    private static <T> List<List<T>> runs(List<T> all, Function<T, String> key) {
        List<List<T>> runs = new ArrayList<>();
        String last = null;
        for (T each : all) {
            String own = key.apply(each);
            if (!own.equals(last)) {
                runs.add(new ArrayList<>());
            }
            runs.get(runs.size() - 1).add(each);
            last = own;
        }
        return runs;
    }

    private void addSingle(LayerCost layer) {
        String name = plain(String.join("/", path(layer)));
        groups.add(new LayerGroup(name, 1, List.of(layer), List.of(name), List.of(layer)));
    }

    private void addEqual(List<List<LayerCost>> blocks, int depth) {
        List<LayerCost> first = blocks.get(0);
        groups.add(
                new LayerGroup(
                        kind(beginning(first.get(0), depth)),
                        blocks.size(),
                        first,
                        first.stream().map(layer -> plain(end(layer, depth))).toList(),
                        blocks.stream().flatMap(List::stream).toList()));
    }

    /** Returns the path of the block that a layer is in, or that of the layer if it is in none. */
    private static String beginning(LayerCost layer, int depth) {
        String[] path = path(layer);
        return path.length > depth + 1
                ? String.join("/", Arrays.copyOf(path, depth + 1))
                : layer.name();
    }

    /** Returns everything that is shown of a block. */
    private String signature(List<LayerCost> block, int depth) {
        String[] path = path(block.get(0));
        return kind(path[Math.min(depth, path.length - 1)])
                + block.stream().map(layer -> signature(layer, depth)).toList();
    }

    private String signature(LayerCost layer, int depth) {
        return end(layer, depth)
                + layer.type()
                + layer.input()
                + layer.equation()
                + layer.parameters().stream().map(LayerGroups::signature).toList()
                + report.lines(layer);
    }

    private static String signature(ParameterCost parameter) {
        return parameter.parameter().getName() + parameter.shape() + PlanReport.cut(parameter);
    }

    private static String[] path(LayerCost layer) {
        return layer.name().replaceAll(" \\(.*\\)$", "").split("/");
    }

    private static String end(LayerCost layer, int depth) {
        String[] path = path(layer);
        return String.join(
                "/", Arrays.copyOfRange(path, Math.min(depth + 1, path.length), path.length));
    }

    /** Returns what a block is called without its number among others. */
    private static String kind(String name) {
        return plain(name).replaceAll("[0-9]+$", "");
    }

    /** Returns a path without the numbers of children. */
    private static String plain(String path) {
        return path.replaceAll("(^|/)[0-9]{2,3}(?=[A-Za-z])", "$1");
    }

    /**
     * Layers that are shown together: one alone, or those of equal blocks, of which one is shown.
     *
     * @param name what the blocks are called
     * @param times how many there are
     * @param shown the layers of the first of them
     * @param names what these layers are called in it
     * @param all the layers of all of them
     */
    record LayerGroup(
            String name,
            int times,
            List<LayerCost> shown,
            List<String> names,
            List<LayerCost> all) {

        /** Returns such as {@code 6 × layer}. */
        String title() {
            return times == 1 ? name : times + " × " + name;
        }
    }
}
