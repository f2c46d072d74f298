package io.djltp.examples.plan;

import static j2html.TagCreator.body;
import static j2html.TagCreator.div;
import static j2html.TagCreator.document;
import static j2html.TagCreator.each;
import static j2html.TagCreator.h1;
import static j2html.TagCreator.h2;
import static j2html.TagCreator.head;
import static j2html.TagCreator.header;
import static j2html.TagCreator.html;
import static j2html.TagCreator.iff;
import static j2html.TagCreator.main;
import static j2html.TagCreator.meta;
import static j2html.TagCreator.p;
import static j2html.TagCreator.rawHtml;
import static j2html.TagCreator.section;
import static j2html.TagCreator.span;
import static j2html.TagCreator.style;
import static j2html.TagCreator.table;
import static j2html.TagCreator.tbody;
import static j2html.TagCreator.td;
import static j2html.TagCreator.th;
import static j2html.TagCreator.thead;
import static j2html.TagCreator.title;
import static j2html.TagCreator.tr;

import io.djltp.collective.Traffic;
import io.djltp.cost.ModelCost;
import io.djltp.cost.RankCost;

import j2html.tags.DomContent;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.stream.IntStream;

/** A plan as a page of HTML that needs no other file. */
final class PlanPage {

    /** The colours of the style sheet; more ranks begin again. */
    static final int COLOURS = 8;

    private final PlanReport report;
    private final ModelCost cost;

    PlanPage(PlanReport report) {
        this.report = report;
        cost = report.cost();
    }

    /** Returns the page. */
    String render() throws IOException {
        String name = report.model().getName() + " on " + cost.getMesh();
        return document(
                html(
                                head(
                                        meta().withCharset("utf-8"),
                                        meta().withName("viewport")
                                                .withContent("width=device-width"),
                                        title(name),
                                        style(rawHtml(css()))),
                                body(
                                        header(h1(name), p(report.model().getDescription())),
                                        main(
                                                facts(),
                                                section(
                                                        h2("What each rank holds"),
                                                        new RankTable(cost).render()),
                                                section(
                                                        h2(
                                                                "What rank 0 communicates in a "
                                                                        + report.step()),
                                                        totals()),
                                                section(
                                                        h2("Layers"),
                                                        new LayerCards(report).render()),
                                                section(h2("Beside the layers"), others()))))
                        .withLang("en"));
    }

    private static String css() throws IOException {
        try (InputStream file = PlanPage.class.getResourceAsStream("plan.css")) {
            return new String(file.readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    private DomContent facts() {
        long most =
                IntStream.range(0, cost.getMesh().getRanks())
                        .mapToLong(rank -> cost.getRank(rank).getTotal())
                        .max()
                        .orElse(0);
        Traffic traffic = cost.getTraffic(0).getTotal();
        return div(
                        fact(String.format(Locale.ROOT, "%,d", report.elements()), "parameters"),
                        fact(
                                String.format(Locale.ROOT, "%,d", report.batch()),
                                "rows a " + report.step()),
                        report.optimizerName() == null
                                ? fact("none", "training")
                                : fact(report.optimizerName(), "optimizer"),
                        fact(Sizes.bytes(most), "on the fullest rank"),
                        fact("" + traffic.calls(), "collectives a " + report.step()),
                        fact(Sizes.bytes(traffic.wire()), "on the wire a " + report.step()))
                .withClass("facts");
    }

    private static DomContent fact(String figure, String name) {
        return div(span(figure).withClass("figure"), span(name)).withClass("fact");
    }

    private DomContent totals() {
        return report.totals().isEmpty()
                ? p("Nothing.").withClass("quiet")
                : traffic(report.totals(), false);
    }

    private DomContent others() {
        List<PlanReport.Line> lines = report.linesOfOthers();
        return lines.isEmpty()
                ? p("Nothing is communicated.").withClass("quiet")
                : traffic(lines, true);
    }

    private static DomContent traffic(List<PlanReport.Line> lines, boolean issuers) {
        return div(table(
                        thead(
                                tr(
                                        iff(issuers, th("of")),
                                        th("when"),
                                        th("collectives"),
                                        th("payload"),
                                        th("on the wire"))),
                        tbody(each(lines, line -> row(line, issuers)))))
                .withClass("scrolls");
    }

    private static DomContent row(PlanReport.Line line, boolean issuers) {
        String direction = line.direction().toString();
        return tr(
                iff(issuers, th(line.issuer())),
                issuers ? td(direction) : th(direction),
                td(line.traffic().calls() + " " + line.collective()),
                td(Sizes.bytes(line.traffic().payload())),
                td(Sizes.bytes(line.traffic().wire())));
    }

    /** The bytes of each rank, in numbers and as bars; ranks that have the same share a row. */
    static final class RankTable {

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
}
