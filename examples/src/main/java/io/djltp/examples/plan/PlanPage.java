package io.djltp.examples.plan;

import static j2html.TagCreator.body;
import static j2html.TagCreator.code;
import static j2html.TagCreator.details;
import static j2html.TagCreator.div;
import static j2html.TagCreator.document;
import static j2html.TagCreator.each;
import static j2html.TagCreator.h1;
import static j2html.TagCreator.h2;
import static j2html.TagCreator.h3;
import static j2html.TagCreator.head;
import static j2html.TagCreator.header;
import static j2html.TagCreator.html;
import static j2html.TagCreator.iff;
import static j2html.TagCreator.li;
import static j2html.TagCreator.main;
import static j2html.TagCreator.meta;
import static j2html.TagCreator.p;
import static j2html.TagCreator.rawHtml;
import static j2html.TagCreator.section;
import static j2html.TagCreator.span;
import static j2html.TagCreator.style;
import static j2html.TagCreator.summary;
import static j2html.TagCreator.table;
import static j2html.TagCreator.tbody;
import static j2html.TagCreator.td;
import static j2html.TagCreator.th;
import static j2html.TagCreator.thead;
import static j2html.TagCreator.title;
import static j2html.TagCreator.tr;
import static j2html.TagCreator.ul;

import io.djltp.collective.Traffic;
import io.djltp.cost.LayerCost;
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

    private static final int FEWEST_FOLDED = 3;

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
                                                section(h2("What each rank holds"), ranks()),
                                                section(h2("Layers"), legend(), layers()),
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
                        fact(String.format(Locale.ROOT, "%,d", report.batch()), "rows a step"),
                        fact(report.optimizerName(), "optimizer"),
                        fact(Sizes.bytes(most), "on the fullest rank"),
                        fact("" + traffic.calls(), "collectives a step"),
                        fact(Sizes.bytes(traffic.wire()), "on the wire a step"))
                .withClass("facts");
    }

    private static DomContent fact(String figure, String name) {
        return div(span(figure).withClass("figure"), span(name)).withClass("fact");
    }

    private DomContent swatch(int rank) {
        return span().withClasses("swatch", "r" + cost.getTensorRank(rank) % COLOURS);
    }

    private DomContent ranks() {
        List<Integer> all = IntStream.range(0, cost.getMesh().getRanks()).boxed().toList();
        return div(table(
                        thead(
                                tr(
                                        th("rank"),
                                        th("weights"),
                                        th("gradients"),
                                        th("optimizer state"),
                                        th("all"),
                                        th("collectives"),
                                        th("on the wire"))),
                        tbody(each(all, this::rank))))
                .withClass("scrolls");
    }

    private DomContent rank(int rank) {
        RankCost bytes = cost.getRank(rank);
        Traffic traffic = cost.getTraffic(rank).getTotal();
        return tr(
                th(swatch(rank), span(" " + rank)),
                td(Sizes.bytes(bytes.weights())),
                td(Sizes.bytes(bytes.gradients())),
                td(Sizes.bytes(bytes.state())),
                td(Sizes.bytes(bytes.getTotal())),
                td("" + traffic.calls()),
                td(Sizes.bytes(traffic.wire())));
    }

    private DomContent legend() {
        List<Integer> places = IntStream.range(0, report.tensorSize()).boxed().toList();
        return div(
                        iff(
                                report.tensorSize() > 1,
                                each(
                                        places,
                                        place ->
                                                span(
                                                        span().withClasses(
                                                                        "swatch",
                                                                        "r" + place % COLOURS),
                                                        span(" shard " + place)))),
                        span(span().withClasses("swatch", "whole"), span(" on every rank")),
                        span(
                                "W is drawn as it is stored, [out, in], and lengths by their"
                                        + " logarithm."))
                .withClass("legend");
    }

    private DomContent layers() {
        List<DomContent> cards = new ArrayList<>();
        List<LayerCost> whole = new ArrayList<>();
        for (LayerCost layer : cost.getLayers()) {
            if (isPlain(layer)) {
                whole.add(layer);
                continue;
            }
            fold(whole, cards);
            cards.add(card(layer));
        }
        fold(whole, cards);
        return each(cards.stream());
    }

    private boolean isPlain(LayerCost layer) {
        return layer.equation().isEmpty() && report.lines(layer).isEmpty();
    }

    /** Puts layers that every rank holds whole away, if they are many. */
    private void fold(List<LayerCost> whole, List<DomContent> cards) {
        if (whole.size() < FEWEST_FOLDED) {
            whole.forEach(layer -> cards.add(card(layer)));
        } else {
            long elements =
                    whole.stream()
                            .flatMap(layer -> layer.parameters().stream())
                            .mapToLong(parameter -> parameter.shape().size())
                            .sum();
            String text =
                    String.format(
                            Locale.ROOT,
                            "%d layers that every rank holds whole, from %s to %s: %,d parameters",
                            whole.size(),
                            whole.get(0).name(),
                            whole.get(whole.size() - 1).name(),
                            elements);
            cards.add(details(summary(text), div(each(whole, this::small)).withClass("folded")));
        }
        whole.clear();
    }

    private DomContent small(LayerCost layer) {
        return div(h3(layer.name()), new LayerPicture(layer).draw()).withClass("small");
    }

    private DomContent card(LayerCost layer) {
        List<PlanReport.Line> lines = report.lines(layer);
        return div(
                        div(
                                h3(layer.name()),
                                iff(
                                        !layer.equation().isEmpty(),
                                        p(code(layer.equation())).withClass("equation")),
                                p("input " + Sizes.shape(layer.input())),
                                ul(
                                        each(
                                                layer.parameters(),
                                                parameter ->
                                                        li(
                                                                parameter.name()
                                                                        + ": "
                                                                        + PlanReport.cut(
                                                                                parameter)))),
                                lines.isEmpty()
                                        ? p("communicates nothing itself").withClass("quiet")
                                        : ul(each(lines, line -> li(line.toString())))
                                                .withClass("traffic")),
                        div(new LayerPicture(layer).draw()).withClass("scrolls"))
                .withClass("card");
    }

    private DomContent others() {
        List<PlanReport.Line> lines = report.linesOfOthers();
        return lines.isEmpty()
                ? p("Nothing is communicated.").withClass("quiet")
                : div(table(
                                thead(
                                        tr(
                                                th("of"),
                                                th("when"),
                                                th("collectives"),
                                                th("payload"),
                                                th("on the wire"))),
                                tbody(
                                        each(
                                                lines,
                                                line ->
                                                        tr(
                                                                th(line.issuer()),
                                                                td(line.direction().toString()),
                                                                td(
                                                                        line.traffic().calls()
                                                                                + " "
                                                                                + line
                                                                                        .collective()),
                                                                td(
                                                                        Sizes.bytes(
                                                                                line.traffic()
                                                                                        .payload())),
                                                                td(
                                                                        Sizes.bytes(
                                                                                line.traffic()
                                                                                        .wire())))))))
                        .withClass("scrolls");
    }
}
