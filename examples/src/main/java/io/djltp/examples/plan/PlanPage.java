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

import j2html.tags.DomContent;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
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
}
