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

import ai.djl.ndarray.types.Shape;

import io.djltp.cost.LayerCost;
import io.djltp.cost.ParameterCost;
import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.examples.plan.LayerGroups.LayerGroup;

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

    /**
     * The matrices of a layer with their shards in colour: {@code x @ Wᵀ + b = y} of a linear
     * layer, as it is drawn where tensor parallelism is explained, and the parameters alone of any
     * other.
     */
    static final class LayerPicture {

        private static final double MARGIN = 10;
        private static final double GAP = 34;
        private static final double CAPTION = 34;

        private final LayerCost layer;
        private final List<Object> parts =
                new ArrayList<>(); // matrices, and the signs between them

        LayerPicture(LayerCost layer) {
            this.layer = layer;
            ParameterCost weight = weight();
            if (weight == null) {
                for (ParameterCost each : layer.parameters()) {
                    parts.add(matrix(shortName(each), each));
                }
            } else if (layer.equation().contains("id")) {
                addLookup(weight);
            } else {
                addProduct(weight, bias());
            }
        }

        /**
         * Returns the matrix that the equation is about, or {@code null} if nothing is cut by it.
         */
        private ParameterCost weight() {
            return layer.parameters().stream()
                    .filter(each -> each.isCut() && each.shape().dimension() == 2)
                    .filter(each -> !layer.equation().isEmpty())
                    .findFirst()
                    .orElse(null);
        }

        private ParameterCost bias() {
            return layer.parameters().stream()
                    .filter(each -> each.shape().dimension() == 1)
                    .findFirst()
                    .orElse(null);
        }

        /** Each rank has rows of the ids that it holds; the sum over the ranks has all. */
        private void addLookup(ParameterCost weight) {
            long ids = layer.input().size();
            parts.add(Matrix.whole("id", new Shape(ids)));
            parts.add("→");
            parts.add(matrix("W", weight));
            parts.add("→");
            parts.add(Matrix.whole("Σ y", new Shape(ids, weight.shape().get(1))));
        }

        private static String shortName(ParameterCost parameter) {
            return parameter.parameter().getName();
        }

        private static Matrix matrix(String name, ParameterCost parameter) {
            return new Matrix(name, parameter.shape(), parameter.getAxis(), parameter.cut());
        }

        /**
         * Column parallel: the output is cut; row parallel: the input is, and the output is a sum.
         */
        private void addProduct(ParameterCost weight, ParameterCost bias) {
            Shape input = layer.input();
            long rows = input.size() / Math.max(1, input.get(input.dimension() - 1));
            Shape x = new Shape(rows, weight.shape().get(1));
            Shape y = new Shape(rows, weight.shape().get(0));
            boolean column = weight.getAxis() == 0;
            parts.add(column ? Matrix.whole("x", x) : new Matrix("x", x, 1, weight.cut()));
            parts.add("@");
            parts.add(matrix("W", weight));
            parts.add("ᵀ");
            if (bias != null) {
                parts.add("+");
                parts.add(matrix("b", bias));
            }
            parts.add("=");
            parts.add(column ? new Matrix("y", y, 1, weight.cut()) : Matrix.whole("Σ y", y));
        }

        /** Draws the picture. */
        Svg draw() {
            double tallest =
                    parts.stream()
                            .filter(Matrix.class::isInstance)
                            .mapToDouble(each -> ((Matrix) each).height())
                            .max()
                            .orElse(0);
            double middle = MARGIN + tallest / 2;
            List<Svg> drawn = new ArrayList<>();
            double x = MARGIN;
            for (Object part : parts) {
                if (part instanceof Matrix matrix) {
                    String caption = matrix.caption();
                    double captionWidth = 6.4 * caption.length();
                    double width = Math.max(matrix.width(), captionWidth);
                    double centre = x + width / 2;
                    drawn.addAll(
                            matrix.draw(centre - matrix.width() / 2, middle - matrix.height() / 2));
                    double below = middle + matrix.height() / 2;
                    drawn.add(Svg.label(centre, below + 14, caption).withClass("shape"));
                    x += width + MARGIN;
                } else if (part.equals("ᵀ")) {
                    drawn.add(Svg.label(x, MARGIN + 4, "ᵀ").withClass("sign"));
                    x += MARGIN;
                } else {
                    drawn.add(
                            Svg.label(x + GAP / 2 - 5, middle, part.toString()).withClass("sign"));
                    x += GAP - 5;
                }
            }
            double height = tallest + MARGIN + CAPTION;
            return new Svg("svg")
                    .attr("viewBox", "0 0 " + Svg.number(x + MARGIN) + " " + Svg.number(height))
                    .attr("width", Svg.number(x + MARGIN))
                    .attr("height", Svg.number(height))
                    .attr("role", "img")
                    .attr("aria-label", "The matrices of " + layer.name() + " and their shards")
                    .with(drawn);
        }
    }

    /**
     * A matrix in a picture, with its shards.
     *
     * @param name its name, such as W
     * @param shape its shape over all ranks; axis 0 is drawn down, the others across
     * @param axis the axis that is cut, or -1
     * @param cut how it is cut, or {@code null}
     */
    record Matrix(String name, Shape shape, int axis, Cut cut) {

        private static final double LEAST = 18;
        private static final double MOST = 172;
        private static final double LEAST_FOR_LABEL = 12;
        private static final double LETTER = 6; // the width of one, about

        /** Creates a matrix that every rank has. */
        static Matrix whole(String name, Shape shape) {
            return new Matrix(name, shape, -1, null);
        }

        private boolean isVector() {
            return shape.dimension() < 2;
        }

        private long down() {
            return shape.dimension() == 0 ? 1 : shape.get(0);
        }

        private long across() {
            return isVector() ? 1 : shape.slice(1).size();
        }

        /**
         * Lengths are drawn by their logarithm: 64 and 120,000 have to be seen beside each other.
         */
        private static double length(long elements) {
            double logarithm = Math.log(Math.max(1, elements)) / Math.log(2);
            return Math.min(MOST, LEAST + 9 * logarithm);
        }

        double width() {
            return isVector() ? LEAST : length(across());
        }

        double height() {
            return length(down());
        }

        /** Returns what is written below: its shape, and with short names of matrices these. */
        String caption() {
            boolean named = shape.dimension() > 1 && name.length() < 4;
            return (named ? name + "  " : "") + Sizes.shape(shape);
        }

        /** Draws the matrix with its upper left corner at a point. */
        List<Svg> draw(double x, double y) {
            List<Svg> parts = new ArrayList<>();
            if (cut == null) {
                parts.add(
                        Svg.rectangle(x, y, width(), height())
                                .withClass("whole")
                                .titled(name + ": " + Sizes.shape(shape) + " on every rank"));
                parts.addAll(label(x + width() / 2, y + height() / 2));
                return parts;
            }
            boolean down = axis == 0;
            double whole = down ? height() : width();
            for (Segment segment : cut.getSegments()) {
                double start = whole * segment.range().start() / cut.getLength();
                double length = whole * segment.range().length() / cut.getLength();
                int count = segment.ranks().size();
                for (int i = 0; i < count; i++) { // what several ranks have is shared out across
                    double thick = (down ? width() : height()) / count;
                    double left = down ? x + i * thick : x + start;
                    double top = down ? y + start : y + i * thick;
                    double w = down ? thick : length;
                    double h = down ? length : thick;
                    parts.addAll(piece(segment, segment.ranks().get(i), left, top, w, h));
                }
            }
            return parts;
        }

        /** Returns the name in the middle, upright where it is too long, or nothing. */
        private List<Svg> label(double x, double y) {
            double length = LETTER * name.length();
            Svg text = Svg.label(x, y, name).withClass("in");
            if (length <= width()) {
                return List.of(text);
            }
            String turned = "rotate(-90 " + Svg.number(x) + " " + Svg.number(y) + ")";
            return length <= height() ? List.of(text.attr("transform", turned)) : List.of();
        }

        private List<Svg> piece(
                Segment segment, int rank, double left, double top, double width, double height) {
            List<Svg> parts = new ArrayList<>();
            String range =
                    String.format(
                            Locale.ROOT,
                            "%s on rank %d of the axis tensor: axis %d from %,d to %,d",
                            name,
                            rank,
                            axis,
                            segment.range().start(),
                            segment.range().end());
            parts.add(
                    Svg.rectangle(left, top, width, height)
                            .withClass("r" + rank % PlanPage.COLOURS)
                            .titled(range));
            if (height >= LEAST_FOR_LABEL && width >= LEAST_FOR_LABEL) {
                String text = width < 2 * LEAST ? "" + rank : name + subscript(rank);
                parts.add(Svg.label(left + width / 2, top + height / 2, text).withClass("on"));
            }
            return parts;
        }

        private static String subscript(int number) {
            StringBuilder text = new StringBuilder();
            for (char digit : Integer.toString(number).toCharArray()) {
                text.append((char) ('₀' + digit - '0'));
            }
            return text.toString();
        }
    }
}
