package io.djltp.examples.plan;

import static j2html.TagCreator.code;
import static j2html.TagCreator.details;
import static j2html.TagCreator.div;
import static j2html.TagCreator.each;
import static j2html.TagCreator.h3;
import static j2html.TagCreator.iff;
import static j2html.TagCreator.li;
import static j2html.TagCreator.p;
import static j2html.TagCreator.section;
import static j2html.TagCreator.span;
import static j2html.TagCreator.summary;
import static j2html.TagCreator.ul;

import io.djltp.cost.LayerCost;

import j2html.tags.DomContent;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.stream.IntStream;

/** The layers of a network with their matrices: a card each, and of equal blocks those of one. */
final class LayerCards {

    private static final int FEWEST_FOLDED = 3;

    private final PlanReport report;

    LayerCards(PlanReport report) {
        this.report = report;
    }

    /** A layer with the name that it is shown by. */
    private record Named(String name, LayerCost layer) {}

    /** Returns the cards. */
    DomContent render() {
        List<DomContent> parts = new ArrayList<>(List.of(legend()));
        List<Named> singles = new ArrayList<>();
        for (LayerGroup group : LayerGroups.of(report)) {
            boolean silent = group.all().stream().allMatch(this::isPlain);
            if (group.times() == 1 || silent) {
                group.all().forEach(layer -> singles.add(new Named(layer.name(), layer)));
                continue;
            }
            parts.add(cards(singles));
            singles.clear();
            parts.add(equal(group));
        }
        parts.add(cards(singles));
        return each(parts.stream());
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
                                                                        "r"
                                                                                + place
                                                                                        % PlanPage
                                                                                                .COLOURS),
                                                        span(" shard " + place)))),
                        span(span().withClasses("swatch", "whole"), span(" on every rank")),
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
        List<Named> layers =
                IntStream.range(0, group.shown().size())
                        .mapToObj(i -> new Named(group.names().get(i), group.shown().get(i)))
                        .toList();
        List<PlanReport.Line> lines = report.lines(group);
        String first = group.all().get(0).name();
        String last = group.all().get(group.all().size() - 1).name();
        return section(
                        h3(group.title()),
                        p("equal blocks, of which one is shown; from " + first + " to " + last)
                                .withClass("quiet"),
                        iff(
                                !lines.isEmpty(),
                                p("all together: "
                                                + String.join(
                                                        ", ",
                                                        lines.stream()
                                                                .map(Object::toString)
                                                                .toList()))
                                        .withClass("together")),
                        cards(layers))
                .withClass("equal");
    }

    private DomContent cards(List<Named> layers) {
        List<DomContent> cards = new ArrayList<>();
        List<Named> whole = new ArrayList<>();
        for (Named each : layers) {
            if (isPlain(each.layer)) {
                whole.add(each);
                continue;
            }
            fold(whole, cards);
            cards.add(card(each));
        }
        fold(whole, cards);
        return each(cards.stream());
    }

    private boolean isPlain(LayerCost layer) {
        return layer.equation().isEmpty() && report.lines(layer).isEmpty();
    }

    /** Puts layers that every rank holds whole away, if they are many. */
    private void fold(List<Named> whole, List<DomContent> cards) {
        if (whole.size() < FEWEST_FOLDED) {
            whole.forEach(each -> cards.add(card(each)));
        } else {
            long elements =
                    whole.stream()
                            .flatMap(each -> each.layer.parameters().stream())
                            .mapToLong(parameter -> parameter.shape().size())
                            .sum();
            String text =
                    String.format(
                            Locale.ROOT,
                            "%d layers that every rank holds whole, from %s to %s: %,d parameters",
                            whole.size(),
                            whole.get(0).name,
                            whole.get(whole.size() - 1).name,
                            elements);
            DomContent pictures = each(List.copyOf(whole), this::small);
            cards.add(details(summary(text), div(pictures).withClass("folded")));
        }
        whole.clear();
    }

    private DomContent small(Named each) {
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
                                ul(
                                        each(
                                                layer.parameters(),
                                                parameter ->
                                                        li(
                                                                parameter.parameter().getName()
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
}
