package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;

import io.djltp.cost.ModelCost.LayerCost;
import io.djltp.cost.ModelCost.ParameterCost;
import io.djltp.cut.Cut;
import io.djltp.cut.Segment;

import j2html.tags.ContainerTag;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * The matrices of a layer with their shards in colour: {@code x @ Wᵀ + b = y} of a linear layer, as
 * it is drawn where tensor parallelism is explained, and the parameters alone of any other.
 */
final class LayerPicture {

    private static final double MARGIN = 10;
    private static final double SIGN = 29; // the room of one
    private static final double CAPTION = 34;
    private static final double LETTER = 6.4; // the width of one of a caption, about

    private final LayerCost layer;
    private final List<Object> parts = new ArrayList<>(); // matrices, and the signs between them

    LayerPicture(LayerCost layer) {
        this.layer = layer;
        ParameterCost weight =
                layer.parameters().stream()
                        .filter(each -> each.isCut() && each.shape().dimension() == 2)
                        .filter(each -> !layer.equation().isEmpty())
                        .findFirst()
                        .orElse(null);
        if (weight == null) {
            layer.parameters().forEach(each -> add(each.parameter().getName(), each));
        } else if (layer.equation().contains("id")) {
            addLookup(weight);
        } else {
            addProduct(weight);
        }
    }

    private void add(String name, ParameterCost parameter) {
        parts.add(new Matrix(name, parameter.shape(), parameter.getAxis(), parameter.cut()));
    }

    private void addWhole(String name, Shape shape) {
        parts.add(new Matrix(name, shape, -1, null));
    }

    /** Each rank has rows of the ids that it holds; the sum over the ranks has all. */
    private void addLookup(ParameterCost weight) {
        long ids = layer.input().size();
        addWhole("id", new Shape(ids));
        parts.add("→");
        add("W", weight);
        parts.add("→");
        addWhole("Σ y", new Shape(ids, weight.shape().get(1)));
    }

    /** Column parallel: the output is cut; row parallel: the input is, and the output is a sum. */
    private void addProduct(ParameterCost weight) {
        Shape input = layer.input();
        long rows = input.size() / Math.max(1, input.get(input.dimension() - 1));
        Shape x = new Shape(rows, weight.shape().get(1));
        Shape y = new Shape(rows, weight.shape().get(0));
        boolean column = weight.getAxis() == 0;
        parts.add(column ? new Matrix("x", x, -1, null) : new Matrix("x", x, 1, weight.cut()));
        parts.add("@");
        add("W", weight);
        parts.add("ᵀ");
        layer.parameters().stream()
                .filter(each -> each.shape().dimension() == 1)
                .findFirst()
                .ifPresent(
                        bias -> {
                            parts.add("+");
                            add("b", bias);
                        });
        parts.add("=");
        parts.add(column ? new Matrix("y", y, 1, weight.cut()) : new Matrix("Σ y", y, -1, null));
    }

    /** Draws the picture. */
    Svg draw() {
        double tallest = 0;
        for (Object part : parts) {
            tallest = part instanceof Matrix each ? Math.max(tallest, each.height()) : tallest;
        }
        double middle = MARGIN + tallest / 2;
        List<Svg> drawn = new ArrayList<>();
        double x = MARGIN;
        double right = x; // of the last matrix, and its top
        double top = 0;
        for (Object part : parts) {
            if (part instanceof Matrix matrix) {
                double width = Math.max(matrix.width(), LETTER * matrix.caption().length());
                top = middle - matrix.height() / 2;
                right = x + width / 2 + matrix.width() / 2;
                drawn.addAll(matrix.draw(right - matrix.width(), top));
                double below = middle + matrix.height() / 2 + 14;
                drawn.add(Svg.label(x + width / 2, below, matrix.caption()).withClass("shape"));
                x += width + MARGIN;
            } else if (part.equals("ᵀ")) {
                drawn.add(Svg.label(right + 8, top + 6, "ᵀ").withClass("sign"));
                x += MARGIN;
            } else {
                drawn.add(Svg.label(x + 12, middle, part.toString()).withClass("sign"));
                x += SIGN;
            }
        }
        double height = tallest + MARGIN + CAPTION;
        return Svg.picture(
                        x + MARGIN, height, "The matrices of " + layer.name() + " and their shards")
                .attr("viewBox", "0 0 " + Svg.number(x + MARGIN) + " " + Svg.number(height))
                .with(drawn);
    }

    /**
     * A matrix in a picture, with its shards.
     *
     * @param name its name, such as W
     * @param shape its shape over all ranks; axis 0 is drawn down, the others across
     * @param axis the axis that is cut, or -1
     * @param cut how it is cut, or {@code null}
     */
    private record Matrix(String name, Shape shape, int axis, @Nullable Cut cut) {

        private static final double LEAST = 18;
        private static final double MOST = 172;
        private static final double LEAST_FOR_LABEL = 12;
        private static final double LETTER = 6; // the width of one, about

        /**
         * Lengths are drawn by their logarithm: 64 and 120,000 have to be seen beside each other.
         */
        private static double length(long elements) {
            double logarithm = Math.log(Math.max(1, elements)) / Math.log(2);
            return Math.min(MOST, LEAST + 9 * logarithm);
        }

        double width() {
            return shape.dimension() < 2 ? LEAST : length(shape.slice(1).size());
        }

        double height() {
            return length(shape.dimension() == 0 ? 1 : shape.get(0));
        }

        /** Returns what is written below: its shape, and with short names of matrices these. */
        String caption() {
            boolean named = shape.dimension() > 1 && name.length() < 4;
            return (named ? name + "  " : "") + Sizes.shape(shape);
        }

        /** Draws the matrix with its upper left corner at a point. */
        List<Svg> draw(double x, double y) {
            List<Svg> drawn = new ArrayList<>();
            if (cut == null) {
                drawn.add(
                        Svg.rectangle(x, y, width(), height())
                                .withClass("whole")
                                .titled(name + ": " + Sizes.shape(shape) + " on every rank"));
                if (LETTER * name.length() <= width()) {
                    drawn.add(Svg.label(x + width() / 2, y + height() / 2, name).withClass("in"));
                }
                return drawn;
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
                    int rank = segment.ranks().get(i);
                    String range =
                            String.format(
                                    Locale.ROOT,
                                    "%s on rank %d of the axis tensor: axis %d from %,d to %,d",
                                    name,
                                    rank,
                                    axis,
                                    segment.range().start(),
                                    segment.range().end());
                    drawn.add(
                            Svg.rectangle(left, top, w, h)
                                    .withClass("r" + rank % PlanPage.COLOURS)
                                    .titled(range));
                    if (h >= LEAST_FOR_LABEL && w >= LEAST_FOR_LABEL) {
                        String text = w < 2 * LEAST ? "" + rank : name + subscript(rank);
                        drawn.add(Svg.label(left + w / 2, top + h / 2, text).withClass("on"));
                    }
                }
            }
            return drawn;
        }

        private static String subscript(int number) {
            StringBuilder text = new StringBuilder();
            Integer.toString(number).chars().forEach(i -> text.append((char) ('₀' + i - '0')));
            return text.toString();
        }
    }

    /** An element of SVG, which HTML knows and its library does not. */
    static final class Svg extends ContainerTag<Svg> {

        private Svg(String name) {
            super(name);
        }

        /** Returns a picture of a size. */
        static Svg picture(double width, double height, String label) {
            return new Svg("svg")
                    .attr("width", number(width))
                    .attr("height", number(height))
                    .attr("role", "img")
                    .attr("aria-label", label);
        }

        /** Returns a rectangle. */
        static Svg rectangle(double x, double y, double width, double height) {
            return new Svg("rect")
                    .attr("x", number(x))
                    .attr("y", number(y))
                    .attr("width", number(width))
                    .attr("height", number(height));
        }

        /** Returns a text whose middle is at a point. */
        private static Svg label(double x, double y, String text) {
            return new Svg("text").attr("x", number(x)).attr("y", number(y)).withText(text);
        }

        /** Returns this element with what a reader or a pointer is told of it. */
        Svg titled(String title) {
            return with(new Svg("title").withText(title));
        }

        private static String number(double value) {
            return String.format(Locale.ROOT, "%.1f", value);
        }
    }
}
