package io.djltp.examples.plan;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.collective.TrafficTable.Traffic;
import io.djltp.cost.LayerCost;
import io.djltp.cost.ModelCost;
import io.djltp.cost.ParameterCost;
import io.djltp.cost.RankCost;
import io.djltp.cut.Cut;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.plan.LayerGroups.LayerGroup;
import io.djltp.rank.DeviceMesh;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
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
record PlanReport(PlannedModel model, int batch, OptimizerName optimizer, ModelCost cost) {

    /** Returns the number of ranks over which layers are cut. */
    int tensorSize() {
        return size(DeviceMesh.TENSOR);
    }

    /** Returns the number of ranks over which the batch is cut. */
    int dataSize() {
        return size(DeviceMesh.DATA);
    }

    private int size(String axis) {
        return cost.getMesh().isCut(axis) ? cost.getMesh().getSize(axis) : 1;
    }

    /** Returns the name of the optimizer, or {@code null} if there is no training. */
    String optimizerName() {
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

        private PlanFigures.Moved figures() {
            return new PlanFigures.Moved(
                    issuer,
                    direction.toString(),
                    collective.toString(),
                    traffic.calls(),
                    traffic.payload(),
                    traffic.wire());
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
            table.get(place.issuer(), place.direction())
                    .forEach(
                            (what, all) ->
                                    lines.add(
                                            new Line(
                                                    place.issuer(), place.direction(), what, all)));
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
        if (!parameter.isCut()) {
            return "on every rank";
        }
        Cut cut = parameter.cut();
        if (!cut.isConsecutive()) {
            return "axis " + parameter.getAxis() + ": " + cut;
        }
        Map<Long, Integer> counts = new LinkedHashMap<>(); // of lengths, such as 2 × 34 + 33
        for (long length : cut.getShardLengths()) {
            counts.merge(length, 1, Integer::sum);
        }
        List<String> lengths = new ArrayList<>();
        counts.forEach(
                (length, count) ->
                        lengths.add(
                                (count == 1 ? "" : count + " × ")
                                        + String.format(Locale.ROOT, "%,d", length)));
        return "axis " + parameter.getAxis() + ": " + String.join(" + ", lengths);
    }

    /** Returns the name of a parameter, and how it is cut. */
    static String describe(ParameterCost parameter) {
        return parameter.parameter().getName() + ": " + cut(parameter);
    }

    /** Returns whether several ranks have the same range of something that is cut. */
    boolean sharesRanges() {
        return cost.getParameters().stream()
                .anyMatch(each -> each.isCut() && !each.cut().isPartition());
    }

    /** Returns the number of elements of all parameters. */
    long elements() {
        return cost.getParameters().stream().mapToLong(each -> each.shape().size()).sum();
    }

    /** Returns the figures of the plan. */
    PlanFigures figures() {
        List<PlanFigures.Rank> ranks = new ArrayList<>();
        for (int rank = 0; rank < cost.getMesh().getRanks(); rank++) {
            RankCost bytes = cost.getRank(rank);
            Traffic all = cost.getTraffic(rank).getTotal();
            ranks.add(
                    new PlanFigures.Rank(
                            rank,
                            bytes.weights(),
                            bytes.gradients(),
                            bytes.state(),
                            bytes.getTotal(),
                            all.calls(),
                            all.wire()));
        }
        return new PlanFigures(
                model.toString(),
                dataSize(),
                tensorSize(),
                batch,
                optimizerName(),
                elements(),
                ranks,
                cost.getParameters().stream().map(this::figures).toList(),
                lines().stream().map(Line::figures).toList());
    }

    private PlanFigures.Parameter figures(ParameterCost each) {
        List<long[]> shards =
                IntStream.range(0, tensorSize())
                        .mapToObj(rank -> each.getShape(rank).getShape())
                        .toList();
        return new PlanFigures.Parameter(
                each.name(), each.shape().getShape(), each.getAxis(), shards);
    }

    /** The figures of a plan, as {@code --json} writes them; the traffic is that of rank 0. */
    record PlanFigures(
            String model,
            int data,
            int tensor,
            int batch,
            String optimizer, // null without training
            long parameters,
            List<Rank> ranks,
            List<Parameter> layout,
            List<Moved> traffic) {

        /** The bytes of a rank. */
        private record Rank(
                int rank,
                long weights,
                long gradients,
                long state,
                long total,
                long collectives,
                long wireBytes) {}

        /** The shards of a parameter, by the place on the axis tensor; axis -1: none is cut. */
        private record Parameter(String name, long[] shape, int axis, List<long[]> shards) {}

        /** A line of the traffic. */
        private record Moved(
                String issuer,
                String direction,
                String collective,
                long calls,
                long payloadBytes,
                long wireBytes) {}
    }
}
