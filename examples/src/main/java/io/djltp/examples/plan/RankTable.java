package io.djltp.examples.plan;

import static j2html.TagCreator.div;
import static j2html.TagCreator.each;
import static j2html.TagCreator.span;
import static j2html.TagCreator.table;
import static j2html.TagCreator.tbody;
import static j2html.TagCreator.td;
import static j2html.TagCreator.th;
import static j2html.TagCreator.thead;
import static j2html.TagCreator.tr;

import io.djltp.collective.Traffic;
import io.djltp.cost.ModelCost;
import io.djltp.cost.RankCost;

import j2html.tags.DomContent;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/** The bytes of each rank, in numbers and as bars; ranks that have the same share a row. */
final class RankTable {

    private static final double BAR = 180;
    private static final double THICK = 12;

    private final ModelCost cost;
    private final long most;

    RankTable(ModelCost cost) {
        this.cost = cost;
        most =
                IntStream.range(0, cost.getMesh().getRanks())
                        .mapToLong(rank -> cost.getRank(rank).getTotal())
                        .max()
                        .orElse(1);
    }

    DomContent render() {
        List<int[]> rows = new ArrayList<>(); // the first and the last rank
        for (int rank = 0; rank < cost.getMesh().getRanks(); rank++) {
            int[] last = rows.isEmpty() ? null : rows.get(rows.size() - 1);
            if (last != null && isSame(last[0], rank)) {
                last[1] = rank;
            } else {
                rows.add(new int[] {rank, rank});
            }
        }
        return div(table(
                        thead(
                                tr(
                                        th("rank"),
                                        th(named("weights", "weights")),
                                        th(named("gradients", "gradients")),
                                        th(named("state", "optimizer state")),
                                        th("all"),
                                        th(""),
                                        th("collectives"),
                                        th("on the wire"))),
                        tbody(each(rows, ranks -> row(ranks)))))
                .withClass("scrolls");
    }

    private static DomContent named(String part, String name) {
        return span(span().withClasses("swatch", part), span(" " + name));
    }

    private boolean isSame(int one, int other) {
        return cost.getRank(one).equals(cost.getRank(other))
                && cost.getTraffic(one).getTotal().equals(cost.getTraffic(other).getTotal());
    }

    private DomContent row(int[] ranks) {
        RankCost bytes = cost.getRank(ranks[0]);
        Traffic traffic = cost.getTraffic(ranks[0]).getTotal();
        String name = ranks[0] == ranks[1] ? "" + ranks[0] : ranks[0] + " to " + ranks[1];
        List<Integer> places =
                IntStream.rangeClosed(ranks[0], ranks[1])
                        .map(cost::getTensorRank)
                        .distinct()
                        .limit(PlanPage.COLOURS)
                        .boxed()
                        .toList();
        return tr(
                th(each(places, RankTable::swatch), span(" " + name)),
                td(Sizes.bytes(bytes.weights())),
                td(Sizes.bytes(bytes.gradients())),
                td(Sizes.bytes(bytes.state())),
                td(Sizes.bytes(bytes.getTotal())),
                td(bar(bytes)),
                td("" + traffic.calls()),
                td(Sizes.bytes(traffic.wire())));
    }

    private static DomContent swatch(int place) {
        return span().withClasses("swatch", "r" + place % PlanPage.COLOURS);
    }

    private Svg bar(RankCost bytes) {
        Svg bar =
                new Svg("svg")
                        .attr("width", Svg.number(BAR))
                        .attr("height", Svg.number(THICK))
                        .attr("role", "img")
                        .attr("aria-label", Sizes.bytes(bytes.getTotal()));
        double x = 0;
        String[] names = {"weights", "gradients", "state"};
        long[] sizes = {bytes.weights(), bytes.gradients(), bytes.state()};
        for (int i = 0; i < sizes.length; i++) {
            double width = BAR * sizes[i] / Math.max(1, most);
            if (sizes[i] > 0) {
                bar.with(
                        Svg.rectangle(x, 0, width, THICK)
                                .withClass(names[i])
                                .titled(names[i] + ": " + Sizes.bytes(sizes[i])));
            }
            x += width;
        }
        return bar;
    }
}
