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

import io.djltp.collective.TrafficTable.Traffic;
import io.djltp.cost.ModelCost;
import io.djltp.cost.ModelCost.LayerCost;
import io.djltp.cost.ModelCost.RankCost;
import io.djltp.examples.plan.LayerGroups.LayerGroup;
import io.djltp.examples.plan.LayerPicture.Svg;

import j2html.tags.DomContent;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** A plan as a page of HTML that needs no other file. */
final class PlanPage {

    /** The colours of the style sheet; more ranks begin again. */
    static final int COLOURS = 8;

    private static final double BAR = 180; // of the fullest rank
    private static final double THICK = 12;

    private final PlanReport report;
    private final ModelCost cost;
    private final long most; // bytes of the fullest rank

    PlanPage(PlanReport report) {
        this.report = report;
        cost = report.cost();
        most =
                IntStream.range(0, cost.getMesh().getRanks())
                        .mapToLong(rank -> cost.getRank(rank).getTotal())
                        .max()
                        .orElse(0);
    }

    /** Returns the page. */
    String render() throws IOException {
        String name = report.model() + " on " + cost.getMesh();
        DomContent totals = traffic(report.totals(), false, "Nothing.");
        DomContent others = traffic(report.linesOfOthers(), true, "Nothing is communicated.");
        return document(
                html(
                                head(
                                        meta().withCharset("utf-8"),
                                        meta().withName("viewport")
                                                .withContent("width=device-width"),
                                        title(name),
                                        style(rawHtml(css()))),
                                body(
                                        header(h1(name), p(report.model().description)),
                                        main(
                                                facts(),
                                                titled("What each rank holds", ranks()),
                                                titled(
                                                        "What rank 0 communicates in a "
                                                                + report.step(),
                                                        totals),
                                                titled("Layers", layers()),
                                                titled("Beside the layers", others))))
                        .withLang("en"));
    }

    private static String css() throws IOException {
        try (InputStream file = PlanPage.class.getResourceAsStream("plan.css")) {
            return new String(file.readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    private static DomContent titled(String title, DomContent content) {
        return section(h2(title), content);
    }

    private DomContent facts() {
        Traffic traffic = total(0);
        String optimizer = report.optimizerName();
        return div(
                        fact(Sizes.number(report.elements()), "parameters"),
                        fact(Sizes.number(report.batch()), "rows a " + report.step()),
                        fact(
                                optimizer == null ? "none" : optimizer,
                                optimizer == null ? "training" : "optimizer"),
                        fact(Sizes.bytes(most), "on the fullest rank"),
                        fact("" + traffic.calls(), "collectives a " + report.step()),
                        fact(Sizes.bytes(traffic.wire()), "on the wire a " + report.step()))
                .withClass("facts");
    }

    private static DomContent fact(String figure, String name) {
        return div(span(figure).withClass("figure"), span(name)).withClass("fact");
    }

    private static DomContent swatch(String colour, String name) {
        return span(span().withClasses("swatch", colour), span(" " + name));
    }

    private static String colour(int place) {
        return "r" + place % COLOURS;
    }

    private static DomContent scrolling(DomContent head, DomContent rows) {
        return div(table(thead(head), tbody(rows))).withClass("scrolls");
    }

    private static DomContent traffic(List<PlanReport.Line> lines, boolean issuers, String none) {
        if (lines.isEmpty()) {
            return p(none).withClass("quiet");
        }
        return scrolling(
                tr(
                        iff(issuers, th("of")),
                        th("when"),
                        th("collectives"),
                        th("payload"),
                        th("on the wire")),
                each(lines, line -> row(line, issuers)));
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
    private DomContent ranks() {
        List<DomContent> rows = new ArrayList<>();
        int ranks = cost.getMesh().getRanks();
        for (int first = 0, end; first < ranks; first = end) {
            end = first + 1;
            while (end < ranks
                    && cost.getRank(first).equals(cost.getRank(end))
                    && total(first).equals(total(end))) {
                end++;
            }
            rows.add(row(first, end - 1));
        }
        return scrolling(
                tr(
                        th("rank"),
                        th(swatch("weights", "weights")),
                        th(swatch("gradients", "gradients")),
                        th(swatch("state", "optimizer state")),
                        th("all"),
                        th(""),
                        th("collectives"),
                        th("on the wire")),
                each(rows.stream()));
    }

    private Traffic total(int rank) {
        return cost.getTraffic(rank).getTotal();
    }

    private DomContent row(int first, int last) {
        RankCost bytes = cost.getRank(first);
        Traffic traffic = total(first);
        List<Integer> places =
                IntStream.rangeClosed(first, last)
                        .map(cost::getTensorRank)
                        .distinct()
                        .limit(COLOURS)
                        .boxed()
                        .toList();
        return tr(
                th(
                        each(places, place -> span().withClasses("swatch", colour(place))),
                        span(" " + first + (first == last ? "" : " to " + last))),
                td(Sizes.bytes(bytes.weights())),
                td(Sizes.bytes(bytes.gradients())),
                td(Sizes.bytes(bytes.state())),
                td(Sizes.bytes(bytes.getTotal())),
                td(bar(bytes)),
                td("" + traffic.calls()),
                td(Sizes.bytes(traffic.wire())));
    }

    private Svg bar(RankCost bytes) {
        Svg bar = Svg.picture(BAR, THICK, Sizes.bytes(bytes.getTotal()));
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

    /** A layer with the name that it is shown by. */
    private record Named(String name, LayerCost layer) {}

    /** The layers with their matrices: a card each, and of equal blocks those of one. */
    private DomContent layers() {
        List<DomContent> parts = new ArrayList<>(List.of(legend()));
        List<Named> singles = new ArrayList<>();
        for (LayerGroup group : LayerGroups.of(report)) {
            if (group.times() == 1 || group.all().stream().allMatch(this::isPlain)) {
                group.all().forEach(layer -> singles.add(new Named(layer.name(), layer)));
            } else {
                parts.add(cards(singles));
                singles.clear();
                parts.add(equal(group));
            }
        }
        parts.add(cards(singles));
        return each(parts.stream());
    }

    private DomContent legend() {
        List<Integer> places = IntStream.range(0, report.tensorSize()).boxed().toList();
        return div(
                        iff(
                                report.tensorSize() > 1,
                                each(places, place -> swatch(colour(place), "shard " + place))),
                        swatch("whole", "on every rank"),
                        iff(
                                report.sharesRanges(),
                                span(
                                        "A part in several colours is on each of these ranks,"
                                                + " whole.")),
                        span(
                                "W is drawn as it is stored, [out, in], and lengths by their"
                                        + " logarithm. Colours are places on the axis tensor."))
                .withClass("legend");
    }

    /** Equal blocks: what one is made of, and what all of them communicate. */
    private DomContent equal(LayerGroup group) {
        List<Named> layers = new ArrayList<>();
        for (int i = 0; i < group.shown().size(); i++) {
            layers.add(new Named(group.names().get(i), group.shown().get(i)));
        }
        String lines =
                report.lines(group).stream()
                        .map(Object::toString)
                        .collect(Collectors.joining(", "));
        String first = group.all().get(0).name();
        String last = group.all().get(group.all().size() - 1).name();
        return section(
                        h3(group.title()),
                        p("equal blocks, of which one is shown; from " + first + " to " + last)
                                .withClass("quiet"),
                        iff(!lines.isEmpty(), p("all together: " + lines).withClass("together")),
                        cards(layers))
                .withClass("equal");
    }

    private DomContent cards(List<Named> layers) {
        List<DomContent> cards = new ArrayList<>();
        List<Named> whole = new ArrayList<>();
        for (Named each : layers) {
            if (isPlain(each.layer)) {
                whole.add(each);
            } else {
                fold(whole, cards);
                cards.add(card(each));
            }
        }
        fold(whole, cards);
        return each(cards.stream());
    }

    private boolean isPlain(LayerCost layer) {
        return layer.equation().isEmpty() && report.lines(layer).isEmpty();
    }

    /** Puts layers that every rank holds whole away. */
    private static void fold(List<Named> whole, List<DomContent> cards) {
        if (!whole.isEmpty()) {
            long elements =
                    whole.stream()
                            .flatMap(each -> each.layer.parameters().stream())
                            .mapToLong(parameter -> parameter.shape().size())
                            .sum();
            String first = whole.get(0).name;
            String last = whole.get(whole.size() - 1).name;
            String text =
                    "%s to %s, %d in all, which every rank holds whole: %s parameters"
                            .formatted(first, last, whole.size(), Sizes.number(elements));
            DomContent pictures = each(List.copyOf(whole), PlanPage::small);
            cards.add(details(summary(text), div(pictures).withClass("folded")));
            whole.clear();
        }
    }

    private static DomContent small(Named each) {
        return div(h3(each.name), new LayerPicture(each.layer).draw()).withClass("small");
    }

    private DomContent card(Named named) {
        LayerCost layer = named.layer;
        List<PlanReport.Line> lines = report.lines(layer);
        return div(
                        div(
                                h3(named.name),
                                iff(
                                        !layer.equation().isEmpty(),
                                        p(code(layer.equation())).withClass("equation")),
                                p("input " + Sizes.shape(layer.input())),
                                ul(each(layer.parameters(), each -> li(PlanReport.describe(each)))),
                                lines.isEmpty()
                                        ? p("communicates nothing itself").withClass("quiet")
                                        : ul(each(lines, line -> li(line.toString())))
                                                .withClass("traffic")),
                        div(new LayerPicture(layer).draw()).withClass("scrolls"))
                .withClass("card");
    }
}
