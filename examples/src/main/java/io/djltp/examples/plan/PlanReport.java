package io.djltp.examples.plan;

import io.djltp.collective.Collective;
import io.djltp.collective.Direction;
import io.djltp.collective.Traffic;
import io.djltp.collective.TrafficTable;
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
import java.util.stream.Collectors;
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
        return optimizer == null ? null : optimizer.name().toLowerCase(Locale.ROOT);
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
            return direction
                    + ": "
                    + traffic.calls()
                    + " "
                    + collective
                    + " of "
                    + Sizes.bytes(traffic.payload());
        }
    }

    /** Returns what rank 0 communicates. */
    List<Line> lines() {
        TrafficTable table = cost.getTraffic(0);
        List<Line> lines = new ArrayList<>();
        for (Direction direction : Direction.values()) {
            for (TrafficTable.Place place : table.getPlaces()) {
                if (place.direction() == direction) {
                    table.get(place.issuer(), direction)
                            .forEach(
                                    (collective, traffic) ->
                                            lines.add(
                                                    new Line(
                                                            place.issuer(),
                                                            direction,
                                                            collective,
                                                            traffic)));
                }
            }
        }
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
        String shards = cut.isConsecutive() ? lengths(cut) : cut.toString();
        return "axis " + parameter.getAxis() + ": " + shards;
    }

    /** Returns the lengths of shards that lie one after another, such as 2 × 34 + 33. */
    private static String lengths(Cut cut) {
        Map<Long, Integer> counts = new LinkedHashMap<>();
        for (long length : cut.getShardLengths()) {
            counts.merge(length, 1, Integer::sum);
        }
        return counts.entrySet().stream()
                .map(
                        each ->
                                (each.getValue() == 1 ? "" : each.getValue() + " × ")
                                        + String.format(Locale.ROOT, "%,d", each.getKey()))
                .collect(Collectors.joining(" + "));
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

    /** The figures of a plan, as {@code --json} writes them. */
    static final class PlanFigures {

        final String model;
        final int data;
        final int tensor;
        final int batch;
        final String optimizer; // null without training
        final long parameters;
        final List<RankFigures> ranks = new ArrayList<>();
        final List<ParameterFigures> layout = new ArrayList<>();
        final List<TrafficFigures> traffic = new ArrayList<>(); // of rank 0

        PlanFigures(PlanReport report) {
            model = report.model().getName();
            data = report.dataSize();
            tensor = report.tensorSize();
            batch = report.batch();
            optimizer = report.optimizerName();
            parameters = report.elements();
            for (int rank = 0; rank < report.cost().getMesh().getRanks(); rank++) {
                RankFigures own = new RankFigures();
                RankCost bytes = report.cost().getRank(rank);
                Traffic all = report.cost().getTraffic(rank).getTotal();
                own.rank = rank;
                own.weights = bytes.weights();
                own.gradients = bytes.gradients();
                own.state = bytes.state();
                own.total = bytes.getTotal();
                own.collectives = all.calls();
                own.wireBytes = all.wire();
                ranks.add(own);
            }
            for (ParameterCost parameter : report.cost().getParameters()) {
                ParameterFigures own = new ParameterFigures();
                own.name = parameter.name();
                own.shape = parameter.shape().getShape();
                own.axis = parameter.getAxis();
                for (int rank = 0; rank < report.tensorSize(); rank++) {
                    own.shards.add(parameter.getShape(rank).getShape());
                }
                layout.add(own);
            }
            report.lines().forEach(line -> traffic.add(new TrafficFigures(line)));
        }

        /** The bytes of a rank. */
        static final class RankFigures {
            int rank;
            long weights;
            long gradients;
            long state;
            long total;
            long collectives;
            long wireBytes;
        }

        /** The shards of a parameter, by the place on the axis tensor; axis -1: none is cut. */
        static final class ParameterFigures {
            String name;
            long[] shape;
            int axis;
            List<long[]> shards = new ArrayList<>();
        }

        /** A line of the traffic. */
        static final class TrafficFigures {
            final String issuer;
            final String direction;
            final String collective;
            final long calls;
            final long payloadBytes;
            final long wireBytes;

            TrafficFigures(PlanReport.Line line) {
                issuer = line.issuer();
                direction = line.direction().toString();
                collective = line.collective().toString();
                calls = line.traffic().calls();
                payloadBytes = line.traffic().payload();
                wireBytes = line.traffic().wire();
            }
        }
    }
}
