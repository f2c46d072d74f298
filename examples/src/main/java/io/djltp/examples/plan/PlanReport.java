package io.djltp.examples.plan;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.collective.TrafficTable.Traffic;
import io.djltp.cost.ModelCost;
import io.djltp.cost.ModelCost.LayerCost;
import io.djltp.cost.ModelCost.ParameterCost;
import io.djltp.cut.Cut;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.plan.LayerGroups.LayerGroup;
import io.djltp.rank.DeviceMesh;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.StringJoiner;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * What is shown of a plan.
 *
 * @param model the model
 * @param batch the rows of a step
 * @param optimizer the optimizer, or {@code null} if there is no training
 * @param cost what it costs
 */
record PlanReport(
        PlannedModel model, int batch, @Nullable OptimizerName optimizer, ModelCost cost) {

    /** Returns the number of ranks over which layers are cut. */
    int tensorSize() {
        DeviceMesh mesh = cost.getMesh();
        return mesh.isCut(DeviceMesh.TENSOR) ? mesh.getSize(DeviceMesh.TENSOR) : 1;
    }

    /** Returns the name of the optimizer, or {@code null} if there is no training. */
    @Nullable String optimizerName() {
        return optimizer == null ? null : optimizer.toString();
    }

    /** Returns what a batch is computed in. */
    String step() {
        return optimizer == null ? "forward pass" : "step";
    }

    /** What one operation of one issuer moves in a step of rank 0. */
    record Line(String issuer, Direction direction, Collective collective, Traffic traffic) {

        private Line plus(Line other) {
            return new Line(issuer, direction, collective, traffic.plus(other.traffic));
        }

        /** Returns the same of another issuer. */
        Line by(String other) {
            return new Line(other, direction, collective, traffic);
        }

        @Override
        public String toString() {
            String bytes = Sizes.bytes(traffic.payload());
            return "%s: %d %s of %s".formatted(direction, traffic.calls(), collective, bytes);
        }
    }

    /** Returns what rank 0 communicates. */
    List<Line> lines() {
        TrafficTable table = cost.getTraffic(0);
        List<Line> lines = new ArrayList<>();
        for (TrafficTable.Place place : table.getPlaces()) {
            String issuer = place.issuer();
            Direction direction = place.direction();
            table.get(issuer, direction)
                    .forEach((what, all) -> lines.add(new Line(issuer, direction, what, all)));
        }
        lines.sort(Comparator.comparing(Line::direction));
        return lines;
    }

    /** Returns what rank 0 communicates for a layer. */
    List<Line> lines(LayerCost layer) {
        return lines().stream().filter(line -> line.issuer.equals(layer.name())).toList();
    }

    /** Returns what rank 0 communicates for losses and gradients, and blocks of blocks. */
    List<Line> linesOfOthers() {
        Set<String> layers = new HashSet<>();
        cost.getLayers().forEach(layer -> layers.add(layer.name()));
        return lines().stream().filter(line -> !layers.contains(line.issuer)).toList();
    }

    /** Returns what rank 0 communicates for equal blocks, all together. */
    List<Line> lines(LayerGroup group) {
        return sum(group.title(), group.all().stream().flatMap(each -> lines(each).stream()));
    }

    /** Returns what rank 0 communicates, by direction and operation. */
    List<Line> totals() {
        return sum("all", lines().stream());
    }

    private static List<Line> sum(String issuer, Stream<Line> lines) {
        Map<List<Enum<?>>, Line> sums = new LinkedHashMap<>();
        lines.sorted(Comparator.comparing(Line::direction).thenComparing(Line::collective))
                .forEach(
                        line ->
                                sums.merge(
                                        List.of(line.direction, line.collective),
                                        line.by(issuer),
                                        Line::plus));
        return List.copyOf(sums.values());
    }

    /** Returns how a parameter is cut, in words. */
    static String cut(ParameterCost parameter) {
        Cut cut = parameter.cut();
        if (cut == null) {
            return "on every rank";
        }
        if (!cut.isConsecutive()) {
            return "axis " + parameter.getAxis() + ": " + cut;
        }
        Map<Long, Integer> counts = new LinkedHashMap<>(); // of lengths, such as 2 × 34 + 33
        for (long length : cut.getShardLengths()) {
            counts.merge(length, 1, Integer::sum);
        }
        StringJoiner lengths = new StringJoiner(" + ", "axis " + parameter.getAxis() + ": ", "");
        counts.forEach(
                (length, count) ->
                        lengths.add((count == 1 ? "" : count + " × ") + Sizes.number(length)));
        return lengths.toString();
    }

    /** Returns the name of a parameter, and how it is cut. */
    static String describe(ParameterCost parameter) {
        return parameter.parameter().getName() + ": " + cut(parameter);
    }

    /** Returns whether several ranks have the same range of something that is cut. */
    boolean sharesRanges() {
        return cost.getParameters().stream()
                .map(ParameterCost::cut)
                .anyMatch(cut -> cut != null && !cut.isPartition());
    }

    /** Returns the number of elements of all parameters. */
    long elements() {
        return cost.getParameters().stream().mapToLong(each -> each.shape().size()).sum();
    }

    /** Returns the figures of the plan, as {@code --json} writes them; the traffic of rank 0. */
    Map<String, Object> figures() {
        int ranks = cost.getMesh().getRanks();
        Map<String, Object> figures = new LinkedHashMap<>();
        figures.put("model", model.toString());
        figures.put("mesh", cost.getMesh().toString());
        figures.put("batch", batch);
        figures.put("optimizer", optimizerName());
        figures.put("parameters", elements());
        figures.put("ranks", IntStream.range(0, ranks).mapToObj(cost::getRank).toList());
        figures.put("layout", cost.getParameters().stream().map(this::layout).toList());
        figures.put("traffic", lines());
        return figures;
    }

    /** Returns the shards of a parameter, by the place on the axis tensor; axis -1: none is cut. */
    private Map<String, Object> layout(ParameterCost each) {
        List<long[]> shards =
                IntStream.range(0, tensorSize())
                        .mapToObj(rank -> each.getShape(rank).getShape())
                        .toList();
        return Map.of(
                "name", each.name(),
                "shape", each.shape().getShape(),
                "axis", each.getAxis(),
                "shards", shards);
    }
}
