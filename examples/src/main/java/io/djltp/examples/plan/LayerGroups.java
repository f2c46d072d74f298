package io.djltp.examples.plan;

import io.djltp.cost.LayerCost;
import io.djltp.cost.ParameterCost;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;

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

    /** A block: the layers whose paths are the same up to a depth. */
    private record Part(List<LayerCost> layers, String signature) {}

    private void add(List<LayerCost> layers, int depth) {
        List<Part> parts = parts(layers, depth);
        for (int i = 0; i < parts.size(); ) {
            Part part = parts.get(i);
            int end = i + 1;
            while (end < parts.size() && parts.get(end).signature.equals(part.signature)) {
                end++;
            }
            if (part.layers.size() == 1) {
                for (; i < end; i++) {
                    addSingle(parts.get(i).layers.get(0));
                }
            } else if (end == i + 1) {
                add(part.layers, depth + 1);
            } else {
                addEqual(parts.subList(i, end), depth);
            }
            i = end;
        }
    }

    private void addSingle(LayerCost layer) {
        String name = plain(String.join("/", path(layer)));
        groups.add(new LayerGroup(name, 1, List.of(layer), List.of(name), List.of(layer)));
    }

    private void addEqual(List<Part> parts, int depth) {
        List<LayerCost> first = parts.get(0).layers;
        String[] path = path(first.get(0));
        String name = plain(String.join("/", Arrays.copyOf(path, depth + 1)));
        groups.add(
                new LayerGroup(
                        kind(name),
                        parts.size(),
                        first,
                        first.stream().map(layer -> plain(end(layer, depth))).toList(),
                        parts.stream().flatMap(part -> part.layers.stream()).toList()));
    }

    private List<Part> parts(List<LayerCost> layers, int depth) {
        List<Part> parts = new ArrayList<>();
        for (int i = 0; i < layers.size(); ) {
            int end = i + 1;
            while (end < layers.size() && isSame(layers.get(i), layers.get(end), depth)) {
                end++;
            }
            List<LayerCost> own = layers.subList(i, end);
            String[] path = path(own.get(0));
            String signature =
                    kind(path[Math.min(depth, path.length - 1)])
                            + own.stream()
                                    .map(layer -> signature(layer, depth))
                                    .collect(Collectors.joining("; "));
            parts.add(new Part(own, signature));
            i = end;
        }
        return parts;
    }

    private static boolean isSame(LayerCost one, LayerCost other, int depth) {
        String[] first = path(one);
        String[] second = path(other);
        return first.length > depth + 1
                && second.length > depth + 1
                && Arrays.equals(Arrays.copyOf(first, depth + 1), Arrays.copyOf(second, depth + 1));
    }

    /** Returns everything that is shown of a layer. */
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
