package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Traffic;
import io.djltp.cost.ModelCost;
import io.djltp.cost.ParameterCost;
import io.djltp.cost.RankCost;

import java.io.PrintStream;
import java.util.LinkedHashSet;
import java.util.Locale;
import java.util.Set;
import java.util.stream.Collectors;

/** A plan as text. */
final class PlanTable {

    private final PlanReport report;
    private final ModelCost cost;
    private final PrintStream out;

    PlanTable(PlanReport report, PrintStream out) {
        this.report = report;
        this.out = out;
        cost = report.cost();
    }

    void print() {
        line(
                "%s on the mesh %s, %,d rows a step, %s",
                report.model().getName(), cost.getMesh(), report.batch(), report.optimizerName());
        int width =
                cost.getParameters().stream()
                        .mapToInt(each -> each.name().length())
                        .max()
                        .orElse(9);
        String row = "%-" + Math.max(9, width) + "s  %-18s  %-8s  %s";
        line("");
        line(row, "parameter", "shape", "cut", "a rank holds");
        for (ParameterCost parameter : cost.getParameters()) {
            line(
                    row,
                    parameter.name(),
                    Sizes.shape(parameter.shape()),
                    parameter.isCut() ? "axis " + parameter.getAxis() : "-",
                    shards(parameter));
        }
        line("");
        line(
                "%-5s %10s %10s %10s %10s  %s",
                "rank", "weights", "gradients", "state", "all", "a step");
        for (int rank = 0; rank < cost.getMesh().getRanks(); rank++) {
            printRank(rank);
        }
        line("");
        line("rank 0 communicates in a step:");
        report.lines()
                .forEach(
                        each ->
                                line(
                                        "  %-8s  %-14s  %9s  %9s on the wire  %s",
                                        each.direction(),
                                        each.traffic().calls() + " " + each.collective(),
                                        Sizes.bytes(each.traffic().payload()),
                                        Sizes.bytes(each.traffic().wire()),
                                        each.issuer()));
        if (report.lines().isEmpty()) {
            line("  nothing");
        }
    }

    private void printRank(int rank) {
        RankCost bytes = cost.getRank(rank);
        Traffic traffic = cost.getTraffic(rank).getTotal();
        line(
                "%-5d %10s %10s %10s %10s  %d collectives, %s on the wire",
                rank,
                Sizes.bytes(bytes.weights()),
                Sizes.bytes(bytes.gradients()),
                Sizes.bytes(bytes.state()),
                Sizes.bytes(bytes.getTotal()),
                traffic.calls(),
                Sizes.bytes(traffic.wire()));
    }

    private String shards(ParameterCost parameter) {
        Set<Shape> shapes = new LinkedHashSet<>();
        for (int rank = 0; rank < report.tensorSize(); rank++) {
            shapes.add(parameter.getShape(rank));
        }
        return shapes.stream().map(Sizes::shape).collect(Collectors.joining(" or "));
    }

    private void line(String format, Object... values) {
        out.printf(Locale.ROOT, format + "%n", values);
    }
}
