package io.djltp.examples.plan;

import io.djltp.collective.Traffic;
import io.djltp.cost.ParameterCost;
import io.djltp.cost.RankCost;

import java.util.ArrayList;
import java.util.List;

/** The figures of a plan, as {@code --json} writes them. */
final class PlanFigures {

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
