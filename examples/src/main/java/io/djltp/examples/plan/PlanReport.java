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
import io.djltp.rank.DeviceMesh;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * What is shown of a plan.
 *
 * @param model the model
 * @param batch the rows of a step
 * @param optimizer the optimizer
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

    String optimizerName() {
        return optimizer.name().toLowerCase(Locale.ROOT);
    }

    /** What one operation of one issuer moves in a step of rank 0. */
    record Line(String issuer, Direction direction, Collective collective, Traffic traffic) {

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

    /** Returns what rank 0 communicates for losses and gradients. */
    List<Line> linesOfOthers() {
        Set<String> layers = new HashSet<>();
        cost.getLayers().forEach(layer -> layers.add(layer.name()));
        return lines().stream().filter(line -> !layers.contains(line.issuer)).toList();
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

    /** Returns the number of elements of all parameters. */
    long elements() {
        return cost.getParameters().stream().mapToLong(each -> each.shape().size()).sum();
    }

    /** Returns the figures for {@code --json}. */
    Figures figures() {
        Figures figures = new Figures();
        figures.model = model.getName();
        figures.data = dataSize();
        figures.tensor = tensorSize();
        figures.batch = batch;
        figures.optimizer = optimizerName();
        figures.parameters = elements();
        for (int rank = 0; rank < cost.getMesh().getRanks(); rank++) {
            RankFigures own = new RankFigures();
            RankCost bytes = cost.getRank(rank);
            Traffic traffic = cost.getTraffic(rank).getTotal();
            own.rank = rank;
            own.weights = bytes.weights();
            own.gradients = bytes.gradients();
            own.state = bytes.state();
            own.total = bytes.getTotal();
            own.collectives = traffic.calls();
            own.wireBytes = traffic.wire();
            figures.ranks.add(own);
        }
        for (ParameterCost parameter : cost.getParameters()) {
            ParameterFigures own = new ParameterFigures();
            own.name = parameter.name();
            own.shape = parameter.shape().getShape();
            own.axis = parameter.getAxis();
            for (int rank = 0; rank < tensorSize(); rank++) {
                own.shards.add(parameter.getShape(rank).getShape());
            }
            figures.layout.add(own);
        }
        lines().forEach(line -> figures.traffic.add(new TrafficFigures(line)));
        return figures;
    }

    /** What {@code --json} writes. */
    static final class Figures {
        String model;
        int data;
        int tensor;
        int batch;
        String optimizer;
        long parameters;
        List<RankFigures> ranks = new ArrayList<>();
        List<ParameterFigures> layout = new ArrayList<>();
        List<TrafficFigures> traffic = new ArrayList<>(); // of rank 0
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

        TrafficFigures(Line line) {
            issuer = line.issuer;
            direction = line.direction.toString();
            collective = line.collective.toString();
            calls = line.traffic.calls();
            payloadBytes = line.traffic.payload();
            wireBytes = line.traffic.wire();
        }
    }
}
